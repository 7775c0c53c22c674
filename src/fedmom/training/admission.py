"""What makes a client's reply unusable. Replies are checked before they count."""

import math
from collections.abc import Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.types import Params
from fedmom.runtimes.base import Block


class Rejected(NamedTuple):
    """A client whose reply does not count, and why."""

    client: int
    reason: str


class Form(NamedTuple):
    """What an update must look like."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    bytes: int

    @classmethod
    def of(cls, update: Params) -> "Form":
        """Return the form of an update."""
        leaves, structure = jax.tree.flatten(update)
        shapes = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
        return cls(structure, shapes, sum(math.prod(s) * d.itemsize for s, d in shapes))

    def fault(self, rows: Params, count: int) -> str:
        """Say what is wrong with stacked updates; nothing if all is well."""
        leaves, structure = jax.tree.flatten(rows)
        if structure != self.structure:
            return f"its update is {structure}, not {self.structure}"
        for leaf, (shape, dtype) in zip(leaves, self.leaves, strict=True):
            got = getattr(leaf, "shape", None)
            if got != (count, *shape):
                return f"its update has an array of shape {got}, not {(count, *shape)}"
            if leaf.dtype != dtype:
                return f"its update has an array of type {leaf.dtype}, not {dtype}"
        return ""


def members_of(block: Block) -> NDArray[np.int64]:
    """Return how many clients each row of a block stands for."""
    return np.ones(np.size(block.clients), np.int64) if block.members is None else block.members


def _numbers(values: Any, count: int) -> bool:
    """Tell whether values are an array of so many real numbers."""
    kind = getattr(values, "dtype", np.dtype(object))
    real = any(jnp.issubdtype(kind, k) for k in (jnp.floating, jnp.integer))
    return real and np.shape(values) == (count,)


def malformed(block: Block, form: Form) -> str:
    """Say what makes a whole block useless; nothing if it is well formed."""
    clients, samples = np.asarray(block.clients), np.asarray(block.samples)
    members = np.asarray(members_of(block))
    if clients.ndim != 1 or not np.issubdtype(clients.dtype, np.integer) or not len(clients):
        return f"its block names the clients {clients.tolist()!r}"
    if samples.shape != clients.shape or not np.issubdtype(samples.dtype, np.integer):
        return f"its block counts its samples as {samples.tolist()!r}"
    whole = members.ndim == 1 and np.issubdtype(members.dtype, np.integer)
    if not whole or (members < 1).any() or members.sum() != len(clients):
        return f"its block has groups of {members.tolist()} for {len(clients)} clients"
    for name in ("loss", "norm"):
        given = block.metrics.get(name)
        if (given is not None or name == "loss") and not _numbers(given, len(members)):
            return f"its block does not have a {name} for each of {len(members)} rows"
    return form.fault(block.update, len(members))


def rows_of(members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of every client of a block."""
    return np.repeat(np.arange(len(members)), members)


def unusable(
    block: Block, samples: NDArray[np.int64], asked: Set[int]
) -> list[tuple[int, Rejected]]:
    """Return the clients of a well-formed block that cannot count, each with its place in it.

    Those that were summed with one of them come last.

    Args:
        block: Replies.
        samples: n_k of every client of the population.
        asked: The clients that were asked and have not answered.
    """
    faults: dict[int, str] = {}
    seen: set[int] = set()
    names = block.clients.tolist()
    for place, (client, claimed) in enumerate(zip(names, block.samples.tolist(), strict=True)):
        reason = _fault(client, claimed, samples, asked)
        if client in seen:
            reason = "it answered twice"
        seen.add(client)
        if reason:
            faults[place] = reason
    rows = rows_of(members_of(block)).tolist() if faults else []
    culprits = {rows[place]: names[place] for place in faults}
    for place, row in enumerate(rows):
        if row in culprits:
            faults.setdefault(place, f"it was summed with client {culprits[row]}")
    return [(place, Rejected(names[place], reason)) for place, reason in faults.items()]


def _fault(client: int, claimed: int, samples: NDArray[np.int64], asked: Set[int]) -> str:
    if not 0 <= client < len(samples):
        return f"there is no such client among {len(samples)}"
    if client not in asked:
        return "it was not asked, or has answered already"
    if claimed != samples[client]:
        return f"it claims {claimed} samples and has {samples[client]}"
    return ""
