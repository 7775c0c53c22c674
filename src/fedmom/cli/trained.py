"""The commands that use a trained model: predict, sample, export."""

import csv
import io
from pathlib import Path
from typing import Any

import click

from fedmom.cli.output import FOLDER, OUT, say
from fedmom.core.errors import FedMomError
from fedmom.core.files import check_file

RUN = click.argument("run", type=FOLDER)


@click.command()
@RUN
@click.argument("source", metavar="DATA")
@click.option(
    "--split",
    type=click.Choice(["train", "test", "all"]),
    default="all",
    help="Which samples of the data.",
)
@click.option("--out", type=FOLDER, help="The CSV file [default: predictions.csv in the run].")
def predict(run: Path, source: str, split: str, out: Path | None) -> None:
    """Predict the labels of DATA with a run's model, and write them to a CSV file.

    DATA is what --data takes elsewhere: a dataset's name, or a path. It must have inputs like those
    that the model was trained on.

    \b
    fedmom predict runs/first synthetic:clients=5
    fedmom predict runs/writers new.npz --split test --out predictions.csv
    """
    import numpy as np

    from fedmom.api.trained_model import AT_ONCE, over_data, why_incomparable
    from fedmom.core.files import write_atomic
    from fedmom.core.progress import track
    from fedmom.data import load
    from fedmom.data.given import conformed
    from fedmom.data.rows.values import listed

    path = out or run / "predictions.csv"
    check_file(path, "--out", "predictions.csv")
    if out and not path.parent.is_dir():
        raise FedMomError(
            f"--out {path}: the folder {path.parent} does not exist. Create it, or choose another."
        )
    trained, data = _opened(run, "predict(x)"), load(source)
    named = [columns is not None for columns in (trained.schema.columns, data.columns)]
    data = conformed(data, trained.schema)
    if named[0] != named[1] and trained.schema.kind == "vector":
        which = "training" if named[1] else "new"
        OUT.print(f"The columns of the {which} data have no names: they are taken in their order.")
    splits = ["train", "test"] if split == "all" else [split]
    parts = over_data(trained, data, splits)
    total = sum(-(-data.split(name).size.sum() // AT_ONCE) for name in splits)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "split", "label", "prediction"])
    right, unknown = [], set()
    for part in track(parts, "Predictions", total=int(total), console=OUT):
        rows = zip(part.clients, part.labels, part.predicted, strict=True)
        writer.writerows([client, part.split, _cell(y), _cell(p)] for client, y, p in rows)
        right.append(part.right.ravel())
        unknown |= set(part.labels[~part.known].tolist()) if part.known.size else set()
    write_atomic(path, text.getvalue().encode())
    found = np.concatenate([np.zeros(0, bool), *right])
    if found.size:
        OUT.print(f"{found.mean():.1%} of {found.size:,} labels are right.")
    if unknown:
        OUT.print(f"The model has no class {listed(sorted(unknown))}: such labels count as wrong.")
    if why := why_incomparable(trained.schema, data):
        OUT.print(f"{why} So there is no share of labels that are right.")
    OUT.print(f"File: {path}")


def _cell(value: Any) -> Any:
    """Return a label as it stands in a CSV file: several numbers are separated by spaces."""
    import numpy as np

    return " ".join(map(str, np.asarray(value).ravel().tolist())) if np.ndim(value) else value


@click.command()
@RUN
@click.option("--prompt", default="\n", show_default=False, help="How the text begins.")
@click.option(
    "--length", type=click.IntRange(1, 1_000_000), default=400, help="Characters to write."
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 100),
    default=0.7,
    help="Below 1, likely characters become likelier; 0 always takes the likeliest.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed.")
def sample(run: Path, prompt: str, length: int, temperature: float, seed: int) -> None:
    """Write text with a run's character model.

    \b
    fedmom sample runs/bard --prompt "To be" --length 400
    """
    say(_opened(run, "sample()").sample(prompt, length=length, temperature=temperature, seed=seed))


@click.command()
@RUN
@click.option("--out", type=FOLDER, help="The new folder [default: export, in the run's folder].")
@click.option("--onnx", is_flag=True, help="Also write model.onnx (an extra).")
@click.option(
    "--batch", type=click.IntRange(1, 65536), default=1, help="Inputs in a call of the ONNX file."
)
def export(run: Path, out: Path | None, onnx: bool, batch: int) -> None:
    """Write a run's model as a safetensors file, with a model card.

    The card names data, settings and metrics.

    \b
    fedmom export runs/first --out first-model
    fedmom export runs/first --onnx --batch 32 --out first-onnx
    """
    made = _opened(run, "export()").export(out, onnx_batch=batch if onnx else None)
    for file in sorted(made.iterdir()):
        OUT.print(f"File: {file}")


def _opened(folder: Path, call: str) -> Any:
    """Return the run in a folder; one of several is not chosen for the user.

    Args:
        folder: The folder.
        call: What to call in Python, where the run needs objects that only Python can give.
    """
    from fedmom.api.calls import ObjectsNeededError, load
    from fedmom.api.runs import Run

    found = load(folder)
    if not isinstance(found, Run):
        raise FedMomError(
            f"{folder} holds {len(found)} runs. Give one, such as {folder / next(iter(found))}."
        )
    try:
        found.experiment  # noqa: B018  # built now
    except ObjectsNeededError as error:
        raise FedMomError(f"{str(error).removesuffix('.')}.{call}.") from None
    return found
