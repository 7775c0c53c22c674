"""Datasets of the Hugging Face library ``datasets``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked, short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import MOST, Between, Seed
from fedmom.data.federated import FederatedData, Task
from fedmom.data.rows.assembly import Division
from fedmom.data.rows.columns import Names, Table, from_table, listed, needed
from fedmom.data.rows.tokenized import from_text_column
from fedmom.data.source_files import check_known, read_content
from fedmom.data.sources.images import read_images

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


@checked
def from_huggingface(
    dataset: "datasets.Dataset | datasets.DatasetDict",
    *,
    label: Names | None = None,
    client: str | None = None,
    features: Names | None = None,
    categories: Names | None = None,
    size: int | str | None = None,
    text: str | None = None,
    tokenizer: Any = None,
    length: Annotated[int, Between(1, MOST)] = 128,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: Seed = 0,
    task: Task | None = None,
    name: str = "huggingface",
) -> FederatedData:
    """Build a population from a ``datasets.Dataset``, or a ``DatasetDict`` of train and test.

    Args:
        dataset: The dataset. Of a dict, "train" is for training and "test" for testing; it must
            not have other splits, such as "validation".
        label: The column of labels, by default "label". A ``ClassLabel`` keeps its names. With
            ``text``, None: the label is the next token, at every place.
        client: The column of client ids. Leave it out to make clients by ``partition``.
        features: The column of images, or the columns of numbers or lists of numbers. By
            default the only column of images, else all other columns.
        categories: Those that hold categories, as for ``from_csv``.
        size: The side that images are brought to, as for ``from_images``.
        text: The column of texts, which the tokenizer turns into inputs.
        tokenizer: For ``text``: a tokenizer of ``transformers`` or ``tokenizers`` with a token
            for padding; or a function of a list of texts that returns their ``input_ids``, and
            has ``get_vocab()`` and ``pad_token_id``.
        length: For ``text``: how many tokens an input has; shorter ones are filled up behind
            their end. Texts with a label are cut to it, others are taken apart.
        test: The column that says which rows are for testing.
        test_fraction: As for ``from_arrays``, and so are the others.
        partition: Instead of ``client``: how rows are dealt to clients.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show.
        name: What the data is called in messages, tables and figures.

    Returns:
        The population.

    Examples:
        >>> import datasets
        >>> rows = {"who": ["a", "b", "a"], "x": [[1.0, 2], [3, 4], [5, 6]], "label": [0, 1, 1]}
        >>> data = from_huggingface(datasets.Dataset.from_dict(rows), client="who")
        >>> data.features.shape, data.train.size.tolist()
        ((2,), [2, 1])
    """
    try:
        import datasets
    except ImportError:
        raise needed("datasets", "hf", "A Hugging Face dataset") from None
    division, marks = Division(test_fraction, partition, seed), None
    if isinstance(dataset, datasets.DatasetDict):
        dataset, marks = _together(dataset, name)
    if not isinstance(dataset, datasets.Dataset):
        raise FedMomError(
            f"{name}: a {type(dataset).__name__} cannot be read by number. Give a Dataset or a"
            " DatasetDict of train and test."
        )
    if (text is None) != (tokenizer is None):
        raise FedMomError(f"{name}: text= and tokenizer= belong together. Give both, or neither.")
    if text is not None:
        if (features, categories, size) != (None, None, None):
            raise FedMomError(
                f"{name}: text= is the only input. Leave features=, categories= and size= out."
            )
        table, known = _table(dataset, name), _class_names(dataset, label)
        return from_text_column(
            table, text, tokenizer, length, label, client, test, division, task, marks, known
        )
    label = "label" if label is None else label
    images = [c for c, f in dataset.features.items() if isinstance(f, datasets.Image)]
    features = images if features is None and len(images) == 1 else features
    if size is not None and not set(listed(features or ())) & set(images):
        raise FedMomError(f"{name}: size={short(size)} is for one column of images. Leave it out.")
    decode = {column: _decoder(name, size) for column in images}
    table, known = _table(dataset, name), _class_names(dataset, label)
    named = label, client, features, test
    return from_table(table, *named, division, task, marks, decode, known, categories)


def _class_names(dataset: "datasets.Dataset", label: Names | None) -> Sequence[str] | None:
    import datasets

    feature = dataset.features.get(label) if isinstance(label, str) else None
    return feature.names if isinstance(feature, datasets.ClassLabel) else None


def _table(dataset: "datasets.Dataset", name: str) -> Table:
    def read(column: str) -> "pa.ChunkedArray":
        return dataset.select_columns([column]).with_format("arrow")[:].column(column)

    return Table(name, dataset.column_names, len(dataset), read)


def _together(
    splits: "datasets.DatasetDict", name: str
) -> tuple["datasets.Dataset", NDArray[np.bool_] | None]:
    import datasets

    if "train" not in splits:
        raise FedMomError(f"{name} has the splits {', '.join(splits)}, and none called train.")
    check_known(f"{name}: the split", splits, ("train", "test"))
    train = splits["train"]
    if "test" not in splits:
        return train, None
    marks = np.repeat([False, True], [len(train), len(splits["test"])])
    try:
        return datasets.concatenate_datasets([train, splits["test"]]), marks
    except ValueError as error:
        raise FedMomError(f"{name}: train and test do not have the same columns: {error}") from None


def _decoder(name: str, size: int | str | None) -> Any:
    def decode(column: "pa.ChunkedArray") -> NDArray[Any]:
        files = []
        for row, value in enumerate(column.to_pylist()):
            if value is None or not (value["bytes"] or value["path"]):
                raise FedMomError(f"{name}: row {row} has no image. Leave the row out.")
            files.append(value["bytes"] or read_content(Path(value["path"])))
        return read_images(name, files, size)

    return decode
