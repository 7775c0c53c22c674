"""The actors that work for one run: ready ones, starting ones, and those that were lost."""

import time
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.progress import waiting
from fedmom.data.federated import FederatedData
from fedmom.runtimes.cluster.actor_pool import ActorPool, PooledActor
from fedmom.runtimes.cluster.balance import Speed
from fedmom.runtimes.cluster.errors import losses, unwrapped
from fedmom.runtimes.cluster.shipping import Store

ALL_WITHIN = 30.0  # seconds to wait for all actors, once one is ready
ONE_WITHIN = 180.0  # seconds to wait for the first
LOOK_EVERY = 2.0  # seconds between looks for machines that have joined


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
        run: The run's name among those that share them.
        program: What clients compute, pickled.
        store: The packed store that the population lies in, if it does.
        data: The population, which is sent to machines that do not have the store.
        actors: How many; None: as many as fit the cluster, also when it grows.
    """

    def __init__(
        self,
        ray: Any,
        pool: ActorPool,
        run: str,
        program: bytes,
        store: Store | None,
        data: FederatedData,
        actors: int | None,
    ) -> None:
        self._ray, self._pool, self.run = ray, pool, run
        self._program = ray.put(program)
        self._store, self._data, self._put = store, data, None
        self._wanted = actors
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
            self._actors.append(RunActor(actor, self._open(actor, self._store or self._whole())))

    def _open(self, actor: PooledActor, data: Any) -> Any:
        return actor.handle.open.remote(self.run, self._program, data)

    def _whole(self) -> Any:
        """Return a reference to the population in Ray's object store, put there once."""
        self._put = self._put or self._ray.put(self._data)
        return self._put

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
                    one.opened = self._open(one.pooled, self._whole())
            except losses() as error:
                self._check_start(error)
                self.lose(one)
            except self._ray.exceptions.RayTaskError as error:
                raise unwrapped(error) from None

    def _check_start(self, error: Exception) -> None:
        """Give up where the first actors cannot start: others would fail in the same way."""
        if getattr(error, "actor_init_failed", False) and not self._now():
            raise FedMomError(
                f"An actor could not start ({str(error).strip().splitlines()[-1]}). Install the"
                " same versions of Python, FedMom and Ray on all machines of the cluster."
            ) from None
