"""Where examples come from. A dataset is one function here and one row in ``DATASETS``."""

from collections.abc import Callable
from pathlib import Path

from fedmom import specs
from fedmom.data.arrays import from_arrays, load_npz
from fedmom.data.federated import Features, FederatedData, Split
from fedmom.data.glyphs import glyphs
from fedmom.data.gutenberg import is_gutenberg, load_gutenberg
from fedmom.data.idx import is_idx, load_idx
from fedmom.data.leaf import is_leaf, load_leaf
from fedmom.data.shakespeare import shakespeare
from fedmom.data.store import cache_folder, is_store, open_store
from fedmom.data.synthetic import synthetic
from fedmom.errors import FedMomError

DATASETS: dict[str, Callable[..., FederatedData]] = {
    "shakespeare": shakespeare,
    "glyphs": glyphs,
    "synthetic": synthetic,
}

# What a path may be: how to tell, and how to read it. The first that fits is taken.
FORMATS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], FederatedData]]] = {
    "a packed store (fedmom data prepare)": (is_store, open_store),
    "a LEAF folder with train/ and test/": (is_leaf, load_leaf),
    "an .npz file of x, y, user, users, is_test": (lambda p: p.suffix == ".npz", load_npz),
    "MNIST's idx files, or their folder": (is_idx, load_idx),
    "a Gutenberg text of Shakespeare's works": (is_gutenberg, load_gutenberg),
}


def locate(spec: str) -> str | Path:
    """Return the path that a spec means, whole, or the spec itself where it is a name."""
    name = spec.partition(":")[0]
    prepared = cache_folder() / spec  # what `fedmom data prepare femnist` has left there
    path = Path(spec).expanduser()
    if name in DATASETS or (not is_store(prepared) and not path.exists()):
        return spec
    return prepared if is_store(prepared) else path.resolve()


def load(spec: str) -> FederatedData:
    """Return the dataset of a name with options, of a prepared store, or at a path."""
    place = locate(spec)
    if isinstance(place, Path):
        return _from_path(place)
    name, path = spec.partition(":")[0], Path(spec)
    if name == "femnist":
        raise FedMomError("femnist is not prepared yet. Fetch it: fedmom data prepare femnist.")
    if len(path.parts) > 1 or path.suffix:
        raise FedMomError(f"There is no {path}. Give --data an existing path or a dataset's name.")
    return specs.bind(specs.pick(DATASETS, name, "dataset"), spec)


def _from_path(path: Path) -> FederatedData:
    for fits, read in FORMATS.values():
        if fits(path):
            return read(path)
    raise FedMomError(f"{path} is no dataset that is read here. It may be {', '.join(FORMATS)}.")


__all__ = [
    "DATASETS",
    "FORMATS",
    "Features",
    "FederatedData",
    "Split",
    "from_arrays",
    "load",
    "locate",
]
