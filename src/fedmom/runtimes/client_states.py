"""The states of clients, a row for every one that has been seen, and runtimes that keep them."""

from collections import ChainMap, deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.base import Client
from fedmom.algorithms.workload import Workload
from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Count
from fedmom.runtimes import in_flight
from fedmom.runtimes.base import Clients, Snapshot
from fedmom.runtimes.in_flight import Question
from fedmom.runtimes.scoring import Scorer


class Simulated:
    """What runtimes of simulated clients have in common: their states, and who was asked.

    Args:
        workload: What is run.
        scorer: Evaluates models, or plans it.
    """

    runs_method = True

    def __init__(self, workload: Workload, scorer: Scorer) -> None:
        self.workload, self._scorer = workload, scorer
        self._data, self._work = workload.data, workload.work
        self._client = workload.method.client
        self.states = ClientStates(self._client)
        self._asked: deque[Question] = deque()
        self._committed: list[Question] = []  # of them, as the last round left them

    @checked
    def ask(self, round_: Count, clients: Clients, broadcast: Any) -> None:
        """Send the broadcast of a round to clients."""
        most = self.workload.data.clients - 1
        if clients.size and not 0 <= clients.min() <= clients.max() <= most:
            raise FedMomError(f"ask: clients is {clients}. They must be numbers from 0 to {most}.")
        if len(clients):
            self._send(Question(round_, deque(clients.tolist()), broadcast))

    def under_way(self) -> list[tuple[int, int]]:
        """Return (client, round) of everybody who was asked and has not answered."""
        return [(client, q.round) for q in self._asked for client in q.clients]

    def cancel(self) -> None:
        """Forget everybody who was asked and has not answered."""
        self._asked.clear()

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have samples."""
        return self._scorer.splits

    def commit(self) -> None:
        """Note that a round is done."""
        self.states.commit()
        self._committed = [question.copy() for question in self._asked]

    def snapshot(self) -> Snapshot:
        """Return the states of the clients seen so far, and who was asked with what."""
        return Snapshot(self.states.tensors() | in_flight.pack(self._committed))

    def restore(self, snapshot: Snapshot, broadcast: Any) -> None:
        """Resume from a snapshot."""
        self.cancel()
        self.states.load(snapshot.tensors, broadcast)
        for question in in_flight.unpack(snapshot.tensors, broadcast):
            self._send(question)
        self.commit()

    def _send(self, question: Question) -> None:
        self._asked.append(question)


class ClientStates:
    """States by client. Where a method keeps none, this holds nothing and costs nothing.

    Changes count from ``commit`` on, so that a checkpoint never holds half a round.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._states: ChainMap[int, Any] = ChainMap({}, {})  # changed since the commit; committed
        self._none: Any = None  # the state of a method that keeps none, once that is known

    def get(self, client: int, broadcast: Any) -> Any:
        """Return a client's state; that of a new client is made from the broadcast."""
        known = client in self._states
        return self._states[client] if known else self._client.init(broadcast)

    def commit(self) -> None:
        """Note that a round is done."""
        changed, committed = self._states.maps
        committed.update(changed)
        changed.clear()

    def stacked(self, clients: Sequence[int], broadcast: Any) -> Any:
        """Return the states of clients, stacked."""
        if self._none is not None:
            return self._none
        first = self.get(clients[0], broadcast)
        if not jax.tree.leaves(first):
            self._none = first
            return first
        states = [first, *(self.get(client, broadcast) for client in clients[1:])]
        return jax.tree.map(lambda *rows: np.stack([np.asarray(r) for r in rows]), *states)

    def put(self, clients: Clients, states: Any) -> None:
        """Keep the states that came out of a call."""
        if self._none is not None:
            return
        rows = jax.tree.map(np.asarray, states)
        for i, client in enumerate(clients.tolist()):
            self._states[client] = jax.tree.map(lambda leaf: leaf[i].copy(), rows)  # noqa: B023

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return all committed states as named arrays, for a checkpoint."""
        return _packed(self._states.maps[1])

    def tensors_of(self, clients: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return the present states of those among the clients who have one."""
        return _packed({c: self._states[c] for c in clients if c in self._states})

    def load(self, tensors: Mapping[str, NDArray[Any]], broadcast: Any) -> None:
        """Take the states of a checkpoint."""
        self._states = ChainMap({}, _unpacked(self._client, tensors, broadcast))

    def take(self, tensors: Mapping[str, NDArray[Any]], broadcast: Any) -> None:
        """Take the states of some clients from elsewhere."""
        self._states.update(_unpacked(self._client, tensors, broadcast))

    def drop(self, clients: Sequence[int]) -> None:
        """Forget clients, as if they had never been asked."""
        for states in self._states.maps:
            for client in clients:
                states.pop(client, None)


def _packed(states: Mapping[int, Any]) -> dict[str, NDArray[Any]]:
    if not states:
        return {}
    clients = sorted(states)
    columns = zip(*(jax.tree.leaves(states[c]) for c in clients), strict=True)
    return {
        "states/clients": np.array(clients, np.int64),
        **{f"states/{i}": np.stack(column) for i, column in enumerate(columns)},
    }


def _unpacked(
    client: Client, tensors: Mapping[str, NDArray[Any]], broadcast: Any
) -> dict[int, Any]:
    if "states/clients" not in tensors:
        return {}
    leaves, form = jax.tree.flatten(jax.eval_shape(client.init, broadcast))
    columns = [tensors[f"states/{i}"] for i in range(len(leaves))]
    return {
        name: jax.tree.unflatten(form, [column[row] for column in columns])
        for row, name in enumerate(tensors["states/clients"].tolist())
    }
