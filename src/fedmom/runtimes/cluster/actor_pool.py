"""The actors of this process, shared by its runs: they start once, and compile once."""

import threading
from collections.abc import Set
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.runtimes.cluster import connect
from fedmom.runtimes.cluster.actor import ClientActor


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
