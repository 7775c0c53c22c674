"""The accelerators of this machine, among which a call's clients are dealt."""

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CLIENTS = PartitionSpec("clients")  # type: ignore[no-untyped-call]  # rows are dealt to devices
WHOLE = PartitionSpec()  # type: ignore[no-untyped-call]  # the same on every device


@lru_cache(maxsize=1)
def mesh() -> Mesh:
    """Return the devices of this process, in a row."""
    return Mesh(np.array(jax.local_devices()), ("clients",))


def on_all(tree: Any) -> Any:
    """Return arrays on every device."""
    return jax.device_put(tree, NamedSharding(mesh(), WHOLE))


def on_first(tree: Any, rows: int) -> Any:
    """Return the first rows of arrays that lie on several devices, where the server computes."""
    here = jax.device_put(tree, jax.devices()[0])
    return jax.tree.map(lambda leaf: leaf if len(leaf) == rows else leaf[:rows], here)
