"""The compiled programs of clients: one at a time, a few in one call, or many at once.

Clients of all sizes and learning rates share a program, and so do all runs of a process that differ
in nothing else.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedmom.algorithms.base import Client, ClientMetrics, Reported, reported
from fedmom.algorithms.client import LocalProblem
from fedmom.algorithms.forms import check_kept
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.workload import Workload
from fedmom.core.prng import fold_in
from fedmom.core.tracing import of_numbers
from fedmom.core.types import Params
from fedmom.data.batches import Arrays, Reader, reader
from fedmom.models.base import Model
from fedmom.models.rewriting import fast
from fedmom.runtimes.local_devices import CLIENTS, WHOLE, mesh

Way = Literal["one", "few", "many", "dealt"]
Answer = tuple[Params, Any, ClientMetrics]  # update, client state, metrics


class ClientTask(NamedTuple):
    """What tells one client's work in a round from another's, as numbers."""

    client: Any
    start: Any
    size: Any
    steps: Any
    round: Any


def compiled(workload: Workload, way: Way) -> Callable[..., Answer]:
    """Return ``program(broadcast, states, arrays, frozen, tasks, key, lr, capacity)``.

    ``tasks`` is a ClientTask per row, as an array of 32-bit integers, which reaches a device
    quicker than its numbers one by one. ``states`` are stacked like the tasks, and so are the
    answers. ``frozen`` is the workload's. ``key`` is that of all clients; the client's own is
    folded from it inside. Only ``capacity`` and the number of tasks are part of the compiled shape.

    ``way``: "one" takes a single task; "few" runs one client after another in one call; "many"
    runs all at once, which fills an accelerator; "dealt" does so on every local device, with an
    equal share of the tasks.
    """
    # The work without the numbers that are handed to the program when it runs.
    batches: Literal["random", "shuffled"] = "shuffled" if workload.work.shuffled else "random"
    bare = replace(workload.work, lr=1.0, steps=1, epochs=None, batches=batches, limit=None)
    read = reader(workload.data.features)
    return _compiled(workload.model, read, bare, workload.method.client, way)


@lru_cache(maxsize=32)
def _compiled(
    model: Model, read: Reader, work: LocalWork, client: Client, way: Way
) -> Callable[..., Answer]:
    def program(
        broadcast: Any,
        states: Any,
        arrays: Arrays,
        frozen: Any,
        tasks: Any,
        key: Any,
        lr: Any,
        capacity: int,
    ) -> Answer:
        def one(numbers: jax.Array, state: Any) -> Answer:
            task = ClientTask(*numbers)
            own = fold_in(fold_in(key, task.round), task.client)
            place = task.start, task.size, task.steps
            more = {"frozen": frozen, "client": task.client}
            problem = LocalProblem(model, read, work, arrays, *place, lr, capacity, **more)
            returned = client.run(broadcast, state, problem, own)
            update, after, metrics = reported(returned, "run of the client")
            of_numbers("run of the client returns an update,", update)
            return update, kept(state, after, (update, metrics)), dict(metrics)

        if way == "one":
            state = jax.tree.map(lambda s: s[0], states)
            return jax.tree.map(lambda leaf: leaf[None], one(tasks[0], state))
        if way in ("many", "dealt"):
            return jax.vmap(one)(tasks, states)
        return jax.lax.map(lambda pair: one(*pair), (tasks, states))

    if way == "dealt":
        places = (WHOLE, CLIENTS, WHOLE, WHOLE, CLIENTS, WHOLE, WHOLE)
        return jax.jit(partial(_dealt, program, places), static_argnames="capacity")
    return jax.jit(fast(program, model), static_argnames="capacity")


def _dealt(program: Callable[..., Answer], places: Any, *given: Any, capacity: int) -> Answer:
    """Run a program on every device, on its share of what is in ``places`` for clients."""
    shared = jax.shard_map(
        partial(program, capacity=capacity),
        mesh=mesh(),
        in_specs=places,
        out_specs=CLIENTS,
        check_vma=False,
    )
    return shared(*given)


def kept(before: Any, after: Any, sent: tuple[Params, Reported]) -> Any:
    """Return a client's state, unchanged where its training diverged."""
    if not jax.tree.leaves(before):
        return before
    check_kept({"state": before}, {"state": after}, "run of the client")
    good = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(sent)]))
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), after, before)
