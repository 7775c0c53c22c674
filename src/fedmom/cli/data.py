"""The command line of datasets: list, stats, show, prepare, check."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from fedmom import data as datasets
from fedmom.cli.output import FOLDER, OUT, listing
from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, slug
from fedmom.data import leaf_sampling, summary
from fedmom.data.federated import FederatedData
from fedmom.data.partition import PARTITIONS, repartition
from fedmom.data.rows.assembly import NoClientsError
from fedmom.data.store.reader import check_store, is_store, read_manifest
from fedmom.data.store.writer import save_store

SOURCE = click.argument("source")
NAMES_SHOWN, LETTERS_SHOWN = 20, 40


@click.group(name="data")
def data_commands() -> None:
    """Inspect datasets, check them, and prepare them for training.

    SOURCE is what --data takes everywhere: a name with options, or a path with options, such as
    table.csv:client=user,label=y (`fedmom data list` shows all kinds).
    """


@data_commands.command(name="list")
def list_() -> None:
    """List the datasets: by name, by kind of file, and prepared ones."""
    view = listing("", "--data", "what it is")
    for spec, about in datasets.DATASETS.described():
        view.add_row("name", spec, about)
    for kind in datasets.FORMATS:
        view.add_row("path", "PATH", kind)
    for folder in sorted(cache_folder().glob("[!.]*")):
        if is_store(folder):
            manifest = read_manifest(folder)
            clients = f"{manifest.name}, {manifest.training_clients:,} clients"
            view.add_row("prepared", folder.name, clients)
    for spec, about in PARTITIONS.described():
        view.add_row("partition", spec, about)
    OUT.print(view)
    OUT.print(f"Prepared datasets are kept in {cache_folder()} (set FEDMOM_CACHE to move them).")


@data_commands.command()
@SOURCE
def stats(source: str) -> None:
    """Print the paper's Table 2 for a dataset, next to the paper's own row."""
    data = datasets.load(source)
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    view.add_column("dataset")
    for column in ("samples", "clients", "mean", "std", "train", "test"):
        view.add_column(column, justify="right")
    row = summary.statistics(data)
    split = [f"{int(part.size.sum()):,}" for part in (data.train, data.test)]
    shown = [(data.name, row, split)]
    if (paper := summary.paper_row(data)) is not None:
        shown.append((paper.name, paper.statistics, []))
    for name, s, parts in shown:
        numbers = (f"{s.samples:,}", f"{s.clients:,}", f"{s.mean:.2f}", f"{s.std:.2f}")
        view.add_row(name, *numbers, *parts)
    OUT.print(view)
    if data.class_names is not None and data.features.kind != "text":
        OUT.print(f"Labels: {_listed(data.class_names)}")
    if unseen := summary.unseen_labels(data):
        OUT.print(f"Labels that only test samples have: {_listed(unseen)}")
    between = row.samples - int(data.train.size.sum() + data.test.size.sum())
    if between:
        OUT.print(f"{between:,} windows between train and test are left out, as in LEAF.")


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many others there are."""
    shown = [name if name.isprintable() else repr(name) for name in names[:NAMES_SHOWN]]
    shown = [textwrap.shorten(name, LETTERS_SHOWN, placeholder="...") for name in shown]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} others" if rest else "")


@data_commands.command()
@SOURCE
@click.option("--out", type=FOLDER, help="Folder for the PNG files.")
def show(source: str, out: Path | None) -> None:
    """Draw a dataset: samples per client and label mix (the paper's Figure 2), and samples."""
    from fedmom.reports import dataset_figure

    data = datasets.load(source)
    stem = slug(Path(source).name, keep="").strip("-")
    for path in dataset_figure.show(data, out or Path("runs") / f"data-{stem}"):
        OUT.print(f"Figure: {path}")


def _refuse(source: str, faults: list[str]) -> None:
    if faults:
        raise FedMomError(f"{source}: " + " ".join(faults))


@data_commands.command()
@SOURCE
def check(source: str) -> None:
    """Read a whole dataset and report any faults."""
    found = datasets.path_of(source)
    if found is not None and is_store(found[0]):
        _refuse(source, check_store(found[0]))
    data = datasets.load(source)
    _refuse(source, summary.faults(data))
    row = summary.statistics(data)
    OUT.print(f"{data.name} is sound: {row.samples:,} samples of {row.clients:,} clients.")


@data_commands.command()
@SOURCE
@click.option(
    "-s",
    type=click.Choice(["niid", "iid"]),
    default="niid",
    help="Sample by users, or pool all samples and assign them to new users.",
)
@click.option("--sf", type=float, default=1.0, help="Fraction of the samples.")
@click.option("--iu", type=float, help="With -s iid: new users, as a fraction. [default: 0.01]")
@click.option("-k", type=int, default=0, help="Drop users with fewer samples.")
@click.option(
    "-t",
    type=click.Choice(["sample", "user"]),
    help="Split anew: each user's samples, or the users. [default: the source's split]",
)
@click.option("--tf", type=float, help="With -t: fraction for training. [default: 0.9]")
@click.option("--smplseed", type=int, default=0, help="Seed of the sampling.")
@click.option("--spltseed", type=int, default=0, help="Seed of the split.")
@click.option(
    "--partition",
    "spec",
    help="Assign rows to new clients by label, e.g. dirichlet:alpha=0.3"
    " (`fedmom data list` shows all partitions).",
)
@click.option(
    "--archives",
    type=FOLDER,
    help="femnist: folder of NIST's by_class.zip and by_write.zip; fetched where missing.",
)
@click.option("--url", help="femnist: where from. [default: NIST's own server]")
@click.option(
    "--out", type=FOLDER, help="The new store, for --data. [default for femnist: the name femnist]"
)
def prepare(
    source: str,
    spec: str | None,
    archives: Path | None,
    url: str | None,
    out: Path | None,
    **flags: Any,
) -> None:
    """Sample, split and pack a dataset with LEAF's flags, or fetch FEMNIST from NIST.

    \b
    fedmom data prepare femnist
    fedmom data prepare pg100.txt --sf 0.2416 -t sample --tf 0.8 --out bard
    fedmom data prepare mnist/ --partition dirichlet:alpha=0.3,clients=200 --out mnist-skewed
    fedmom run --data bard --lr 0.3
    """
    if source == "femnist":
        _fetch_femnist(archives or cache_folder() / "downloads", url)
        if out is None:
            return
    if out is None:
        raise FedMomError("--out is missing: name a folder for the new store.")
    if out.exists() and not is_store(out):
        raise FedMomError(f"{out} exists and is not a FedMom store. Choose another --out.")
    data = _dealt(source, spec, flags["smplseed"])
    given = {name: value for name, value in flags.items() if value is not None}
    data = leaf_sampling.prepare(data, **flags)
    save_store(data, out, {"source": source, "partition": spec, "flags": given})
    row = summary.statistics(data)
    OUT.print(f"{out}: {row.samples:,} samples of {row.clients:,} clients. Use it as --data {out}")


def _dealt(source: str, partition: str | None, seed: int) -> FederatedData:
    """Load a dataset and deal its rows by --partition, if that is given."""
    try:
        data = datasets.load(source)
    except NoClientsError:
        if partition is None:
            raise
        path = datasets.path_of(source)
        more = "," if path and path[1] else ":"
        return datasets.load(f"{source}{more}seed={seed},partition={partition}")
    return data if partition is None else repartition(data, partition, seed)


def _fetch_femnist(archives: Path, url: str | None) -> None:
    """Pack FEMNIST from NIST's archives, which are fetched unless both are there."""
    from fedmom.data.sources import femnist

    store = cache_folder() / "femnist"
    files = [archives / "by_class.zip", archives / "by_write.zip"]
    if not all(file.is_file() for file in files):
        files = list(femnist.fetch(archives, url or femnist.NIST_URL))
    by_class, by_write = files
    femnist.pack(store, by_class, by_write)
    OUT.print(f"femnist is prepared in {store}. Use it as --data femnist")
