"""The server's programs, compiled while the clients compile theirs.

Both take most of a first round. What the server's step is given follows from the cohort, where a
runtime knows the sizes of its blocks; so another core can compile it meanwhile.
"""

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedmom.core.types import Params
from fedmom.runtimes.base import Block
from fedmom.runtimes.sums import Rows, Sum
from fedmom.training.admission import Admitted
from fedmom.training.aggregate import Carried, Collected, Programs


def precompile(
    collected: Collected,
    form: Params,
    sizes: Sequence[int],
    arguments: tuple[Carried, int, int, Any],
) -> threading.Thread:
    """Compile a round's sums and its step on another thread; wait for it with ``join``.

    Args:
        collected: An empty round, with ``compiling`` programs.
        form: What one update looks like.
        sizes: How many replies each block will have.
        arguments: Those of ``Collected.step``.
    """

    def compile_all() -> None:
        with contextlib.suppress(Exception):  # the round itself says what is wrong
            for size in sizes:
                collected.add(_block(form, size), _all_of(size))
            collected.step(*arguments)

    thread = threading.Thread(target=compile_all, name="compile", daemon=True)
    thread.start()
    return thread


def compiling(programs: Programs) -> Programs:
    """Return programs that are compiled where they would run."""
    add: Any = programs.add
    step: Any = programs.step

    def compile_add(total: Sum | None, rows: Rows) -> Sum:
        lowered = add.lower(total, rows)
        lowered.compile()
        found: Sum = jax.tree.map(_placed, lowered.out_info)
        return found

    return Programs(compile_add, lambda *arguments: step.lower(*arguments).compile())


def _block(form: Params, size: int) -> Block:
    """Return replies of which only the form is there."""
    update = jax.tree.map(lambda leaf: _placed(leaf, size), form)
    numbers = _placed(np.zeros((), np.float32), size)
    clients = np.arange(size)
    return Block(clients, update, np.ones_like(clients), {"loss": numbers, "norm": numbers}, 0)


def _all_of(size: int) -> Admitted:
    return Admitted(np.ones(size, np.int64), np.ones(size, bool), 1.0)


def _placed(leaf: Any, *rows: int) -> jax.ShapeDtypeStruct:
    """Return the form of rows on the device that computes: elsewhere is another program."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct((*rows, *leaf.shape), leaf.dtype, sharding=place)  # type: ignore[no-untyped-call]
