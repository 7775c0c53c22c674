"""Where examples come from. A dataset is one function here and one row in ``DATASETS``."""

from collections.abc import Callable
from pathlib import Path

from fedmom import specs
from fedmom.data.arrays import from_arrays, from_npz
from fedmom.data.federated import Features, FederatedData, Split
from fedmom.data.shakespeare import shakespeare
from fedmom.data.synthetic import synthetic
from fedmom.errors import FedMomError

DATASETS: dict[str, Callable[..., FederatedData]] = {
    "shakespeare": shakespeare,
    "synthetic": synthetic,
}


def load(spec: str) -> FederatedData:
    """Return the dataset of a name with options, or of the file at a path."""
    path = Path(spec).expanduser()
    name = spec.partition(":")[0]
    if name not in DATASETS and (path.exists() or len(path.parts) > 1 or path.suffix):
        return _from_path(path)
    return specs.bind(specs.pick(DATASETS, name, "dataset"), spec)


def _from_path(path: Path) -> FederatedData:
    if not path.exists():
        raise FedMomError(f"There is no file {path}. Give --data an existing .npz file or a name.")
    if path.suffix != ".npz":
        raise FedMomError(f"{path} is not an .npz file, the one kind of data file read here.")
    return from_npz(path)


__all__ = ["DATASETS", "Features", "FederatedData", "Split", "from_arrays", "from_npz", "load"]
