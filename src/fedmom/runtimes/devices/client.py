"""The one client that lives on a device: the same compiled program as in every other runtime."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedmom.algorithms import schedules
from fedmom.algorithms.local_work import capacity
from fedmom.algorithms.workload import Workload
from fedmom.core.compilation import keep_programs
from fedmom.core.prng import clients_key
from fedmom.core.types import Params
from fedmom.data.batches import place, reader
from fedmom.runtimes.base import Scores
from fedmom.runtimes.client_programs import ClientTask, compiled
from fedmom.runtimes.devices.state_folder import NEW, StateFolder
from fedmom.runtimes.scoring import Scorer


class Trained(NamedTuple):
    """What a client sends back, and what it did for that."""

    update: Params
    metrics: dict[str, float]  # the loss, and what else the method's client reports
    samples: int
    steps: int


class DeviceClient:
    """A client on its own device.

    Args:
        workload: What is run. Its data has one client, this one.
        number: The client's number in the run.
        states: Where it keeps its state between rounds.
    """

    def __init__(self, workload: Workload, number: int, states: StateFolder) -> None:
        keep_programs()
        self._workload, self._number, self._states = workload, number, states
        self._arrays = place(workload.data.arrays)

    def params_form(self) -> Params:
        """Return a tree like the model's parameters."""
        return self._workload.params()

    def broadcast_form(self) -> Any:
        """Return the shapes and types of what the server sends to be trained."""
        return self._workload.broadcast_form()

    def train(self, round_: int, broadcast: Any, start: int = NEW, oldest: int = NEW) -> Trained:
        """Answer a round.

        Args:
            round_: The round.
            broadcast: What the server sent.
            start: The round whose state the client starts from; NEW if it has none.
            oldest: The first round whose state may be asked for again.
        """
        work, data = self._workload.work, self._workload.data
        first, size = int(data.train.start[0]), int(data.train.size[0])
        task = ClientTask(self._number, first, size, work.count(round_, size), round_)
        client = self._workload.method.client
        program = compiled(self._workload.model, reader(data.features), work, client, "one")
        state = self._state(broadcast, start)
        update, after, metrics = program(
            jax.device_put(broadcast, jax.devices()[0]),
            jax.tree.map(lambda leaf: np.asarray(leaf)[None], state),
            self._arrays,
            np.array([task], np.int32),
            clients_key(self._workload.seed),
            schedules.at(work.lr, round_),
            capacity=capacity(work, size),
        )
        if jax.tree.leaves(after):
            self._states.save(round_, jax.tree.map(lambda leaf: leaf[0], after), oldest)
        mine = jax.tree.map(lambda leaf: np.asarray(leaf[0]), update)
        numbers = {name: float(value[0]) for name, value in metrics.items() if name != "norm"}
        return Trained(mine, numbers, size, int(task.steps))

    def evaluate(self, params: Params, split: str, budget: int, start: int = NEW) -> Scores:
        """Evaluate a model on at most ``budget`` of the client's own samples."""
        scorer = Scorer(self._workload.model, self._workload.data, self._arrays)
        personal = self._workload.method.client.personal
        if personal is not None:
            params = personal(params, self._state(params, start))
        return scorer(params, split, budget)

    def _state(self, broadcast: Any, start: int) -> Any:
        """Return the client's state; one that was deleted or never was is made new."""
        fresh = self._workload.method.client.init(broadcast)
        if start == NEW or not jax.tree.leaves(fresh):
            return fresh
        kept = self._states.load(start, fresh)
        return fresh if kept is None else kept
