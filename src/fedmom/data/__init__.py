"""Where examples come from. A dataset is one function in ``sources`` and one row in ``DATASETS``.

Importing this package loads neither JAX nor NumPy: the modules of sources and formats are loaded
when one of them is asked for.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmom.core import registry
from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, user_path
from fedmom.core.registry import Registry

if TYPE_CHECKING:
    from fedmom.data.federated import FederatedData

DATASETS = Registry(
    "dataset",
    {name: f"fedmom.data.sources.{name}:{name}" for name in ("shakespeare", "glyphs", "synthetic")},
    returns="fedmom.data.federated:FederatedData",
    takes=(),
)

# What a path may be: a module, and what its functions is_... and load_... are called that recognise
# the path and that read it. The first that fits is used.
FORMATS = {
    "a packed store (fedmom data prepare)": ("store.reader", "store"),
    "a LEAF folder with train/ and test/": ("sources.leaf", "leaf"),
    "an .npz file of x, y and optionally user, users, is_test": ("sources.arrays", "npz"),
    "MNIST's idx files, or their folder": ("sources.mnist", "idx"),
    "a Gutenberg text of Shakespeare's works": ("sources.gutenberg", "gutenberg"),
    "a CSV or Parquet file, with label=COLUMN": ("sources.table", "table"),
    "a folder of client/class/image, or class/image with partition=": ("sources.images", "images"),
    "a folder of client.txt, or client/any.txt": ("sources.texts", "texts"),
}


def path_of(spec: str) -> tuple[Path, str] | None:
    """Return the path that a spec means, whole, and its options; None where it is a name."""
    from fedmom.data.store.reader import is_store

    if spec.partition(":")[0] in DATASETS:
        return None
    for end in [len(spec), *(i for i in range(len(spec) - 1, 0, -1) if spec[i] == ":")]:
        path = user_path(spec[:end], "--data")
        if os.path.lexists(path) and path.exists():
            break
    else:
        path, end = user_path(spec, "--data"), 0
        path.exists()  # a name that is too long is told as the user wrote it
    prepared = cache_folder() / spec  # what `fedmom data prepare femnist` has left there
    if end in (0, len(spec)) and is_store(prepared):
        return prepared, ""
    return (path.resolve(), spec[end + 1 :]) if end else None


def locate(spec: str) -> str:
    """Return a spec with its path whole, as a run's settings keep it; a name as it is."""
    found = path_of(spec)
    if found is None:
        return spec
    path, options = found
    return f"{path}:{options}" if options else str(path)


def load(spec: str) -> "FederatedData":
    """Load a dataset by its name with options, or from a path.

    Args:
        spec: A name of ``DATASETS`` with options, such as ``synthetic:alpha=0.5,clients=100``;
            the name of a prepared dataset, such as ``femnist``; or a path to one of
            ``FORMATS``, with options such as ``table.csv:client=user,label=y``. Options end
            with ``partition=``, as what comes after it is the partition's own. Files are packed
            the first time and mapped into memory from then on.

    Returns:
        The population of clients with their samples.

    Raises:
        FedMomError: There is no such dataset, or it cannot be read.

    Examples:
        >>> data = load("synthetic:alpha=0.5,clients=4")
        >>> data.clients
        4
        >>> data.features
        Features(kind='vector', shape=(60,), classes=10, task='classes')
    """
    if (found := path_of(spec)) is not None:
        return _from_path(*found)
    name = spec.partition(":")[0]
    if name not in DATASETS:
        _refuse_missing(name)
    data: FederatedData = DATASETS.build(spec)
    return data


def _refuse_missing(name: str) -> None:
    """Say what is missing, where it is a file or FEMNIST; the registry does for other names."""
    path = Path(name)
    if name == "femnist":
        raise FedMomError("femnist is not prepared yet. Fetch it: fedmom data prepare femnist.")
    if name == "devices":
        raise FedMomError("The data of this run is on devices. Use fedmom deploy run.")
    if len(path.parts) > 1 or path.suffix:
        raise FedMomError(f"There is no {path}. Give --data an existing path or a dataset's name.")


def _from_path(path: Path, options: str) -> "FederatedData":
    from fedmom.data.source_files import check_regular

    check_regular(path, path.stat().st_mode)
    for module, kind in FORMATS.values():
        source = import_module(f"fedmom.data.{module}")
        if getattr(source, f"is_{kind}")(path):
            function = getattr(source, f"load_{kind}")
            data: FederatedData = function(path, **_options(function, path, options))
            return data
    raise FedMomError(f"{path} is not a known dataset. It may be {', '.join(FORMATS)}.")


def _options(function: Callable[..., Any], path: Path, text: str) -> dict[str, Any]:
    """Return the options after a path. ``partition=`` comes last, and has options of its own."""
    from fedmom.data.partition import PARTITIONS

    name = path.name.replace(":", "_")
    own, last, partition = f",{text}".partition(",partition=")
    given = registry.options(function, f"{name}:{own}")
    if not last:
        return given
    known = registry.options_of(function)
    if "partition" not in known:
        raise FedMomError(f"{name} has clients already, and takes no partition=.")
    own_of_partition = registry.options_of(PARTITIONS.find(partition))
    for key in registry.split(partition)[1]:
        if key in known and key not in own_of_partition:
            raise FedMomError(
                f"{name}: {key}= comes after partition=, where only the partition's own options may"
                f" be. Write {key}= before it."
            )
    return given | {"partition": partition}
