"""Work in flight: who was asked with what and has not answered, as arrays for a checkpoint.

All runtimes write it alike, so that a checkpoint of one resumes on another.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Question:
    """Clients that were asked with one broadcast and have not answered."""

    round: int
    clients: deque[int]
    broadcast: Any

    def answered(self, clients: Iterable[int]) -> None:
        """Note who has answered; whoever was asked twice is still asked once."""
        done, asked = Counter(clients), self.clients
        self.clients = deque()
        for client in asked:
            if done[client]:
                done[client] -= 1
            else:
                self.clients.append(client)

    def copy(self) -> "Question":
        """Return the question as it is now, whoever answers later."""
        return Question(self.round, self.clients.copy(), self.broadcast)


def pack(questions: Iterable[Question]) -> dict[str, NDArray[Any]]:
    """Return questions as named arrays."""
    tensors: dict[str, NDArray[Any]] = {}
    for number, question in enumerate(questions):
        tensors[f"asked/{number}/round"] = np.array(question.round)
        tensors[f"asked/{number}/clients"] = np.array(question.clients)
        for i, leaf in enumerate(jax.tree.leaves(question.broadcast)):
            tensors[f"asked/{number}/broadcast/{i}"] = np.asarray(leaf)
    return tensors


def of_clients(asked: Iterable[tuple[int, int, Any]]) -> list[Question]:
    """Return questions from (client, round, broadcast), those with one broadcast together."""
    together: dict[tuple[int, int], Question] = {}
    for client, round_, broadcast in asked:
        empty = Question(round_, deque(), broadcast)
        together.setdefault((round_, id(broadcast)), empty).clients.append(client)
    return list(together.values())


def unpack(tensors: Mapping[str, NDArray[Any]], broadcast: Any) -> list[Question]:
    """Return the questions among named arrays; ``broadcast`` shows the form of what was sent."""
    questions: list[Question] = []
    leaves, form = jax.tree.flatten(broadcast)
    while (name := f"asked/{len(questions)}") + "/broadcast/0" in tensors:
        sent = [tensors[f"{name}/broadcast/{i}"] for i in range(len(leaves))]
        whole = jax.device_put(jax.tree.unflatten(form, sent), jax.devices()[0])
        if f"{name}/question" in tensors:  # devices used to write one client at a time
            client, round_ = tensors[f"{name}/question"].tolist()
            questions.append(Question(round_, deque([client]), whole))
            continue
        clients = deque(tensors[f"{name}/clients"].tolist())
        questions.append(Question(int(tensors[f"{name}/round"]), clients, whole))
    return questions
