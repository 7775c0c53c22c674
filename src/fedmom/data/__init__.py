"""Where examples come from. A dataset is one function in ``sources`` and one row in ``DATASETS``.

Importing this package loads neither JAX nor NumPy: the modules of sources and formats are loaded
when one of them is asked for.
"""

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, user_path
from fedmom.core.registry import Registry

if TYPE_CHECKING:
    from fedmom.data.federated import FederatedData

DATASETS = Registry(
    "dataset",
    {
        "shakespeare": "fedmom.data.sources.shakespeare:shakespeare",
        "glyphs": "fedmom.data.sources.glyphs:glyphs",
        "synthetic": "fedmom.data.sources.synthetic:synthetic",
    },
)

# What a path may be: the functions that recognise it and that read it. The first that fits is
# taken.
FORMATS = {
    "a packed store (fedmom data prepare)": (
        "fedmom.data.store:is_store",
        "fedmom.data.store:open_store",
    ),
    "a LEAF folder with train/ and test/": (
        "fedmom.data.sources.leaf:is_leaf",
        "fedmom.data.sources.leaf:load_leaf",
    ),
    "an .npz file of x, y, user, users, is_test": (
        "fedmom.data.sources.arrays:is_npz",
        "fedmom.data.sources.arrays:load_npz",
    ),
    "MNIST's idx files, or their folder": (
        "fedmom.data.sources.mnist:is_idx",
        "fedmom.data.sources.mnist:load_idx",
    ),
    "a Gutenberg text of Shakespeare's works": (
        "fedmom.data.sources.gutenberg:is_gutenberg",
        "fedmom.data.sources.gutenberg:load_gutenberg",
    ),
}


def locate(spec: str) -> str | Path:
    """Return the path that a spec means, whole, or the spec itself where it is a name."""
    from fedmom.data.store import is_store

    if spec.partition(":")[0] in DATASETS:
        return spec
    path = user_path(spec, "--data")
    there = path.exists()  # first: a name that is too long is told as the user wrote it
    prepared = cache_folder() / spec  # what `fedmom data prepare femnist` has left there
    if is_store(prepared):
        return prepared
    return path.resolve() if there else spec


def load(spec: str) -> "FederatedData":
    """Load a dataset by its name with options, or from a path.

    Args:
        spec: A name of ``DATASETS`` with options, such as ``synthetic:alpha=0.5,clients=100``;
            the name of a prepared dataset, such as ``femnist``; or a path to one of
            ``FORMATS``. Files are packed the first time and mapped into memory from then on.

    Returns:
        The population of clients with their samples.

    Raises:
        FedMomError: There is no such dataset, or it cannot be read.

    Examples:
        >>> data = load("synthetic:alpha=0.5,clients=4")
        >>> data.clients
        4
        >>> data.features
        Features(kind='vector', shape=(60,), classes=10)
    """
    place = locate(spec)
    if isinstance(place, Path):
        return _from_path(place)
    name, path = spec.partition(":")[0], Path(spec)
    if name not in DATASETS:
        _refuse_missing(name, path)
    data: FederatedData = DATASETS.build(spec)
    return data


def _refuse_missing(name: str, path: Path) -> None:
    """Say what is missing, where it is a file or FEMNIST; the registry does for other names."""
    if name == "femnist":
        raise FedMomError("femnist is not prepared yet. Fetch it: fedmom data prepare femnist.")
    if name == "devices":
        raise FedMomError("The data of this run is on devices. Go on with: fedmom deploy run.")
    if len(path.parts) > 1 or path.suffix:
        raise FedMomError(f"There is no {path}. Give --data an existing path or a dataset's name.")


def _from_path(path: Path) -> "FederatedData":
    for fits, read in FORMATS.values():
        if resolve_name(fits)(path):
            data: FederatedData = resolve_name(read)(path)
            return data
    raise FedMomError(f"{path} is no dataset that is read here. It may be {', '.join(FORMATS)}.")
