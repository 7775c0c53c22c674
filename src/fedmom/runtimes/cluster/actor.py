"""The actor: a process of the cluster that holds the data and works for clients."""

import os
import time
from typing import Any, NamedTuple


class Job(NamedTuple):
    """Clients to work for in a round.

    Args:
        round: The round.
        clients: Their numbers.
        foreign: Those of them whose states this actor does not hold, or no longer rightly.
        states: The states of the foreign ones that have any, as named arrays.
        cohort: How many clients the whole run usually asks at once, so that calls hold as many
            clients as they do on one machine.
        sums: Whether to add up the clients' replies, where the rule allows it.
    """

    round: int
    clients: list[int]
    foreign: list[int]
    states: dict[str, Any]
    cohort: int
    sums: bool


class ActorReply(NamedTuple):
    """What an actor sends back: blocks, the clients' new states, and how long it took."""

    blocks: list[Any]
    states: dict[str, Any]
    seconds: float


class ClientActor:
    """Works for the clients of one run or several, one job after another.

    Args:
        cpus: How many CPUs it may use.
    """

    def __init__(self, cpus: int) -> None:
        from fedmom.core.compilation import prepare_process

        os.environ["NPROC"] = str(cpus)  # XLA's threads, which must be told before JAX is imported
        if cpus == 1:
            flags = os.environ.get("XLA_FLAGS", "")
            os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
        prepare_process()
        self._cpus = cpus
        self._workers: dict[str, Any] = {}

    def process(self) -> tuple[str, int]:
        """Return the node and the number of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def open(self, run: str, program: bytes, data: Any) -> bool:
        """Get ready for a run; False: the data is a store that is not on this machine."""
        from fedmom.runtimes.cluster.shipping import Store, opened
        from fedmom.runtimes.cluster.worker import Worker

        found = opened(data) if isinstance(data, Store) else data
        if found is not None:
            self._workers[run] = Worker(program, found, self._cpus)
        return found is not None

    def run(self, run: str, job: Job, broadcast: Any) -> ActorReply:
        """Work for clients; ends early if the job is cancelled."""
        import ray

        began = time.perf_counter()
        cancelled = ray.get_runtime_context().is_canceled
        blocks, states = self._workers[run].run(job, broadcast, cancelled)
        return ActorReply(blocks, states, time.perf_counter() - began)

    def evaluate(self, run: str, params: Any, *arguments: Any) -> Any:
        """Evaluate a model on some clients; the arguments are those of ``Worker.evaluate``."""
        return self._workers[run].evaluate(params, *arguments)

    def close(self, run: str) -> None:
        """Forget a run that was opened."""
        self._workers.pop(run).local.close()
