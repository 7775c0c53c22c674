"""Columns of texts of Hugging Face datasets, with a tokenizer that is trained on a few lines."""

import hashlib
import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom import FedMomError
from fedmom.data.given import conformed
from fedmom.data.schema import Schema
from fedmom.experiments import provenance

LINES = [
    "the cat sat on the mat",
    "a dog ran",
    "the dog sat",
    "on a mat the cat ran on and on",
]
WHO = ["ann", "bob", "ann", "bob"]
OPTIONS = {"rounds": 1, "lr": 0.1, "clients_per_round": 2, "progress": False}


class Words:
    """A tokenizer with nothing but what is asked of one: words by number, padded and marked."""

    pad_token_id = 0

    def __init__(self, lines=LINES):
        self.numbers = {word: n for n, word in enumerate(sorted({*" ".join(lines).split()}), 1)}

    def get_vocab(self):
        return {"<pad>": 0, **self.numbers}

    def __call__(self, texts):
        rows = [[self.numbers[word] for word in text.split()] for text in texts]
        longest = max(map(len, rows))
        ids = [[0] * (longest - len(row)) + row for row in rows]  # on the left, as some do
        return {"input_ids": ids, "attention_mask": [[int(t > 0) for t in row] for row in ids]}


@pytest.fixture(scope="module")
def dataset():
    datasets = pytest.importorskip("datasets", reason="needs fedmom[hf]")
    labels = datasets.Features(
        {
            "text": datasets.Value("string"),
            "user": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["cats", "dogs"]),
        }
    )
    rows = {"text": LINES, "user": WHO, "label": [0, 1, 1, 0]}
    return datasets.Dataset.from_dict(rows, features=labels)


@pytest.fixture(scope="module")
def trained():
    """A tokenizer of the library, with a token before and behind every text."""
    library = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    made = library.Tokenizer(library.models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]
    made.train_from_iterator(LINES, library.trainers.BpeTrainer(special_tokens=special))
    made.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def test_texts_with_labels_become_tokens(dataset):
    words = Words()
    data = fedmom.from_huggingface(
        dataset, text="text", label="label", client="user", tokenizer=words, length=4
    )
    assert data.features[:] == ("vector", (4,), 2, "classes")
    assert (data.users, data.class_names) == (["ann", "bob"], ("cats", "dogs"))
    ids = [[words.numbers[word] for word in line.split()][:4] for line in LINES]
    expected = [row + [0] * (4 - len(row)) for row in ids]
    assert data.arrays["x"].tolist() == [expected[n] for n in (0, 2, 1, 3)]
    assert data.arrays["y"].tolist() == [0, 1, 1, 0]
    content = json.dumps(words.get_vocab(), sort_keys=True).encode()
    assert data.tokens == (0, "Words", 10, hashlib.sha256(content).hexdigest())


def test_without_a_label_the_next_token_is_one(dataset):
    """Every token but the first is predicted once; a client's texts stay its own."""
    words = Words()
    data = fedmom.from_huggingface(dataset, text="text", client="user", tokenizer=words, length=3)
    assert data.features[:] == ("vector", (3,), 10, "sequence")
    pieces = []
    for client in data.users:
        for line in (line for line, who in zip(LINES, WHO, strict=True) if who == client):
            ids = [words.numbers[word] for word in line.split()]
            for first in range(0, len(ids) - 1, 3):
                x, y = ids[first : first + 3], ids[first + 1 : first + 4]
                pieces.append((x[: len(y)] + [0] * (3 - len(y)), y + [-100] * (3 - len(y))))
    assert data.train.size.tolist() == [3, 4]
    assert data.arrays["x"].tolist() == [x for x, _ in pieces]
    assert data.arrays["y"].tolist() == [y for _, y in pieces]


def test_test_splits_are_kept(dataset):
    datasets = pytest.importorskip("datasets")
    parts = {"train": dataset.select([0, 1, 2]), "test": dataset.select([3])}
    both = datasets.DatasetDict(parts)
    data = fedmom.from_huggingface(both, text="text", client="user", tokenizer=Words(), length=3)
    assert (data.train.size.tolist(), data.test.size.tolist()) == ([3, 1], [0, 3])


def test_a_tokenizer_of_the_library_is_left_as_it_is(dataset, trained):
    """What it adds to texts stays, also where they are cut; its own settings do not count."""
    length = 5
    before = trained.to_str()
    data = fedmom.from_huggingface(
        dataset, text="text", label="label", client="user", tokenizer=trained, length=length
    )
    assert trained.to_str() == before
    other = type(trained).from_str(before)
    other.enable_truncation(length)
    other.enable_padding(pad_id=1, length=length)
    expected = np.array([found.ids for found in other.encode_batch(LINES)])
    np.testing.assert_array_equal(data.arrays["x"], expected[[0, 2, 1, 3]])
    assert set(data.arrays["x"][:, 0]) == {2}
    assert data.tokens[:3] == (1, "BPE", trained.get_vocab_size())
    again = fedmom.from_huggingface(
        dataset, text="text", label="label", client="user", tokenizer=other, length=length
    )
    assert again.tokens == data.tokens


def test_a_tokenizer_of_transformers_is_the_same(dataset, trained):
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, pad_token="[PAD]", unk_token="[UNK]"
    )
    named = {"text": "text", "label": "label", "client": "user", "length": 5}
    data = fedmom.from_huggingface(dataset, tokenizer=wrapped, **named)
    expected = wrapped(LINES, truncation=True, max_length=5, padding="max_length")["input_ids"]
    np.testing.assert_array_equal(data.arrays["x"], np.array(expected)[[0, 2, 1, 3]])


@pytest.fixture(scope="module", params=["words", "trained"])
def run(request, dataset, tmp_path_factory):
    """A run on next tokens, and its tokenizer."""
    tokenizer = Words() if request.param == "words" else request.getfixturevalue("trained")
    data = fedmom.from_huggingface(
        dataset, text="text", client="user", tokenizer=tokenizer, length=6
    )
    count = data.features.classes

    def apply(w, x, _key):
        return w[x]

    start = np.random.default_rng(0).normal(size=(count, count))
    model = fedmom.model((lambda _key: jnp.asarray(start), apply), data)
    out = tmp_path_factory.mktemp("tokenized") / "run"
    return fedmom.run(data, model, out=out, **OPTIONS), tokenizer, data


def test_predictions_for_texts_need_the_tokenizer(run):
    trained_run, tokenizer, data = run
    lines = ["a dog", "the cat sat on the mat and"]
    ids = tokenizer(lines)["input_ids"] if isinstance(tokenizer, Words) else None
    ids = ids or [found.ids for found in tokenizer.encode_batch(lines)]
    rows = [[t for t in row if t != data.tokens.padding][:6] for row in ids]
    found = trained_run.outputs(lines, tokenizer=tokenizer)
    assert found.shape == (2, 6, data.features.classes)
    np.testing.assert_array_equal(found, trained_run.outputs(rows))
    expected = trained_run.predict(rows)
    np.testing.assert_array_equal(trained_run.predict(lines, tokenizer=tokenizer), expected)
    with pytest.raises(FedMomError, match=r"x holds texts, and .* trained with .* tokens \(.*\)"):
        trained_run.predict(LINES)
    with pytest.raises(FedMomError, match=r"tokenizer has padding 0 and Words of 2 tokens"):
        trained_run.predict(LINES, tokenizer=Words(["a"]))
    top = data.features.classes
    with pytest.raises(FedMomError, match=f"number of a token, from 0 to {top - 1}"):
        trained_run.predict([[1, top]])


def test_the_runs_schema_knows_the_tokenizer(run):
    trained_run, _tokenizer, data = run
    kept = Schema.from_json((trained_run.path / "schema.json").read_bytes(), "schema.json")
    assert kept.tokens == data.tokens == trained_run.schema.tokens
    assert conformed(data, kept).arrays["x"] is data.arrays["x"]
    other = replace(data, tokens=data.tokens._replace(fingerprint="0" * 64))
    with pytest.raises(FedMomError, match=r"tokens \(000000000000\), but the model was trained"):
        conformed(other, kept)
    config = trained_run.result.config
    assert provenance.check(trained_run.path, config, data, accept=False) == []
    with pytest.raises(FedMomError, match=r"tokenizer of the data was .* and is .*\(0000000"):
        provenance.check(trained_run.path, config, other, accept=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokenizer": None}, "text= and tokenizer= belong together"),
        ({"text": None}, "text= and tokenizer= belong together"),
        ({"features": "label"}, "text= is the only input"),
        ({"text": "user", "client": None}, "no client IDs given"),
        ({"text": "label"}, "column 'label' does not hold texts"),
        ({"text": "tekst"}, "Did you mean 'text'"),
        ({"tokenizer": 3}, "tokenizer is 3. Give one of the libraries tokenizers or transformers"),
        ({"tokenizer": len}, "has get_vocab"),
    ],
)
def test_what_does_not_fit_is_refused(dataset, options, says):
    given = {"text": "text", "client": "user", "tokenizer": Words(), **options}
    with pytest.raises(FedMomError, match=says):
        fedmom.from_huggingface(dataset, **given)


@pytest.mark.parametrize(("line", "says"), [("", "has no tokens"), ("cat", "has one token")])
def test_texts_without_a_next_token_are_refused(line, says):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": [LINES[0], line]})
    with pytest.raises(FedMomError, match=rf"text of row 1 is '{line}' .*{says}.* Leave it out"):
        fedmom.from_huggingface(
            rows, text="text", tokenizer=Words(), partition="iid:clients=1", length=3
        )


def test_a_tokenizer_without_padding_is_refused():
    library = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    datasets = pytest.importorskip("datasets")
    made = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    rows = datasets.Dataset.from_dict({"text": ["a b", "b a"], "user": [0, 1]})
    with pytest.raises(FedMomError, match="The tokenizer has no token for padding"):
        fedmom.from_huggingface(rows, text="text", client="user", tokenizer=made)
