"""The actors of this process, shared by its runs, and those that work for one run.

They start once and compile once. A run has ready ones, starting ones, and those that were lost.
"""

import threading
import time
import uuid
from collections.abc import Set
from typing import Any

from fedmom.algorithms.workload import Workload
from fedmom.core.errors import FedMomError
from fedmom.core.progress import waiting
from fedmom.runtimes.cluster import connect, shipping
from fedmom.runtimes.cluster.actor import ClientActor
from fedmom.runtimes.cluster.balance import Speed
from fedmom.runtimes.cluster.shipping import Store

ALL_WITHIN = 30.0  # seconds to wait for all actors, once one is ready
ONE_WITHIN = 180.0  # seconds to wait for the first
LOOK_EVERY = 2.0  # seconds between looks for machines that have joined


class PooledActor:
    """A process of the cluster; ``runs`` is how many runs it works for."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.runs = 0
        self.is_lost = False


class ActorPool:
    """Actors with so many CPUs each, on the cluster that this process is connected to."""

    def __init__(self, ray: Any, cpus: int) -> None:
        self._ray, self._cpus = ray, cpus
        # Where Ray keeps the order of calls, an actor waits half a minute for a call that was
        # cancelled before it was sent. No call here depends on one that has not ended.
        options = {"max_restarts": 0, "allow_out_of_order_execution": True}
        self._class = ray.remote(num_cpus=cpus, **options)(ClientActor)
        self._actors: list[PooledActor] = []
        self._lock = threading.Lock()

    def capacity(self) -> int:
        """Return how many actors the cluster has room for, if it has nothing else to do."""
        return connect.room(self._ray, self._cpus)

    def take(self, count: int, had: Set[PooledActor]) -> list[PooledActor]:
        """Return so many actors besides those that a run has: idle, new, or the least busy."""
        with self._lock:
            room = self.capacity() - len(self._actors)
            idle = sum(not actor.runs for actor in self._others(had))
            for _ in range(min(room, count - idle)):
                self._actors.append(PooledActor(self._class.remote(self._cpus)))
            chosen = sorted(self._others(had), key=lambda actor: actor.runs)[:count]
            for actor in chosen:
                actor.runs += 1
            return chosen

    def lose(self, actor: PooledActor) -> None:
        """Note that an actor has died, or may as well have."""
        with self._lock:
            if not actor.is_lost:
                actor.is_lost = True
                self._actors.remove(actor)
                self._ray.kill(actor.handle)

    def release(self, actor: PooledActor) -> None:
        """Note that a run no longer needs an actor."""
        with self._lock:
            actor.runs -= 1

    def end(self) -> None:
        """End all actors."""
        for actor in list(self._actors):
            self.lose(actor)

    def _others(self, had: Set[PooledActor]) -> list[PooledActor]:
        return [actor for actor in self._actors if actor not in had]


_POOLS: dict[tuple[str, int], ActorPool] = {}
_LOCK = threading.Lock()


def pool_of(ray: Any, cpus: int) -> ActorPool:
    """Return the pool of actors with so many CPUs; idle ones of another size make room."""
    context = ray.get_runtime_context()
    session = f"{context.get_session_name()} {context.get_job_id()}"
    with _LOCK:
        for (other, size), pool in list(_POOLS.items()):
            if other != session:
                del _POOLS[other, size]  # Ray was shut down since, and they with it
            elif size != cpus and not any(actor.runs for actor in pool._actors):
                pool.end()
        pool = _POOLS.setdefault((session, cpus), ActorPool(ray, cpus))
    if not pool.capacity():
        raise FedMomError(
            f"No actor of {cpus} CPUs fits the Ray cluster, whose largest machine has"
            f" {max(connect.machines(ray), default=0)}. Take fewer cpus, or a larger machine."
        )
    return pool


class RunActor:
    """An actor of the run; ``opened`` tells when it has the data and the program."""

    def __init__(self, pooled: PooledActor, opened: Any) -> None:
        self.pooled, self.handle, self.opened = pooled, pooled.handle, opened
        self.is_ready = False
        self.speed = Speed()


class RunActors:
    """Finds actors for a run and hands them its data and program.

    Args:
        ray: The package.
        pool: Where actors come from.
        workload: What is run. Machines that do not have its packed store are sent the data.
        actors: How many; None: as many as fit the cluster, also when it grows.
    """

    def __init__(self, ray: Any, pool: ActorPool, workload: Workload, actors: int | None) -> None:
        self._ray, self._pool, self._wanted = ray, pool, actors
        self.run = uuid.uuid4().hex  # its name among those that share the actors
        self._program = ray.put(shipping.pickled(workload))
        self._store, self._whole = shipping.store_of(workload.data), None
        self._data = shipping.without_names(workload.data)
        self._actors: list[RunActor] = []
        self._looked = -LOOK_EVERY
        self._is_settled = False  # whether all actors that were wanted have had their time
        if actors is not None and actors > pool.capacity():
            raise FedMomError(
                f"actors={actors}: the Ray cluster has room for {pool.capacity()}. Take so many,"
                " or add machines with `ray start --address=...`."
            )
        self._look()

    def ready(self) -> list[RunActor]:
        """Return the actors that can work now; waits for the first, and a while for all."""
        if time.monotonic() - self._looked >= LOOK_EVERY:
            self._look()
        self._settle(0.0)
        if not self._is_settled or not self._now():
            with waiting("Waiting for actors"):
                self._wait()
        self._is_settled = True
        return self._now()

    def _wait(self) -> None:
        """Wait for all actors; after a while, for one."""
        began = time.monotonic()
        while not self._actors or not all(one.is_ready for one in self._actors):
            waited = time.monotonic() - began
            if waited > ALL_WITHIN and self._now():
                return
            if waited > ONE_WITHIN:
                raise FedMomError(
                    f"No actor could start within {ONE_WITHIN:.0f} s. The Ray cluster may be busy"
                    " with other work: `ray status` shows it."
                )
            self._settle(0.5)
            self._look()

    def lose(self, one: RunActor) -> None:
        """Go on without an actor that has died, and start another one."""
        if one in self._actors:
            self._actors.remove(one)
            self._pool.lose(one.pooled)
            self._look()

    def close(self) -> None:
        """Let the actors forget the run."""
        for one in self._actors:
            if one.is_ready:
                one.handle.close.remote(self.run)
            self._pool.release(one.pooled)
        self._actors = []

    def _now(self) -> list[RunActor]:
        return [one for one in self._actors if one.is_ready]

    def _look(self) -> None:
        """Take what the cluster has to offer by now."""
        self._looked = time.monotonic()
        for one in [m for m in self._actors if m.pooled.is_lost]:
            self._actors.remove(one)
        wanted = self._pool.capacity() if self._wanted is None else self._wanted
        had = {one.pooled for one in self._actors}
        for actor in self._pool.take(wanted - len(had), had) if wanted > len(had) else []:
            self._actors.append(RunActor(actor, self._open(actor, self._store)))

    def _open(self, actor: PooledActor, store: Store | None) -> Any:
        """Hand an actor the program, and the store or else the data, which Ray is given once."""
        if store is None:
            self._whole = self._whole or self._ray.put(self._data)
        return actor.handle.open.remote(self.run, self._program, store or self._whole)

    def _settle(self, timeout: float) -> None:
        """Note which actors have become ready, or have died on the way."""
        starting = {m.opened: m for m in self._actors if not m.is_ready}
        if not starting:
            return
        done, _ = self._ray.wait(list(starting), num_returns=len(starting), timeout=timeout)
        for ref in done:
            one = starting[ref]
            try:
                if self._ray.get(ref):
                    one.is_ready = True
                else:  # its machine does not have the store
                    one.opened = self._open(one.pooled, None)
            except connect.losses() as error:
                self._check_start(error)
                self.lose(one)
            except self._ray.exceptions.RayTaskError as error:
                raise connect.unwrapped(error) from None

    def _check_start(self, error: Exception) -> None:
        """Give up where the first actors cannot start: others would fail in the same way."""
        if getattr(error, "actor_init_failed", False) and not self._now():
            raise FedMomError(
                f"An actor could not start ({str(error).strip().splitlines()[-1]}). Install the"
                " same versions of Python, FedMom and Ray on all machines of the cluster."
            ) from None
