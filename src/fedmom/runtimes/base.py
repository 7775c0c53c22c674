"""The protocol between the round loop and the place where clients live."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.workload import Workload
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between
from fedmom.models.metrics import Metric, accuracy

Clients = NDArray[np.int64]
Budget = Annotated[int, Between(1, MOST)] | None  # of samples in an evaluation; None: all


class Block(NamedTuple):
    """Replies of one or more clients, stacked.

    Args:
        clients: Their numbers.
        update: A tree whose leaves have one row per client, or one per group of clients.
        samples: n_k of every client, as the client tells it.
        metrics: Numbers with one entry per row: ``loss``, the mean local loss; ``norm``, the
            norm of the row, where the runtime has measured it itself; and what the method's
            clients and stages report.
        version: The round whose model they trained.
        members: How many clients each row stands for, in the order of ``clients``, where groups
            were summed on their way; a row is then the weighted mean of its group by the rule's
            weights. None: one client per row.

    Arrays may still be being computed; the loop waits once a round.

    Examples:
        >>> block = Block(
        ...     clients=np.array([4, 7]),
        ...     update={"w": np.zeros((2, 3))},
        ...     samples=np.array([10, 20]),
        ...     metrics={"loss": np.array([0.5, 0.7])},
        ...     version=0,
        ... )
        >>> block.update["w"][1].shape  # of client 7
        (3,)
    """

    clients: Clients
    update: Params
    samples: Clients
    metrics: Mapping[str, Any]
    version: int
    members: Clients | None = None


class Failure(NamedTuple):
    """A client that will not answer, and why.

    Args:
        client: Its number.
        reason: Why, for the round's record.
        version: The round in which it was asked.

    Examples:
        >>> Failure(client=4, reason="it ran out of memory", version=0).reason
        'it ran out of memory'
    """

    client: int
    reason: str
    version: int


class Scores(NamedTuple):
    """An evaluation, per client that was evaluated.

    Args:
        samples: Its weight in means: how many samples it has in the split, or, where there are
            fewer samples to evaluate than clients, how many were drawn of it.
        evaluated: How many of them were evaluated.
        sums: Per metric and for ``loss``, the sum over the evaluated samples: one number per
            client, or a row of numbers; a row for the loss has its sum and how many terms it has.
        metrics: What the sums are of, and what is made of them: the model's metrics.

    Examples:
        >>> scores = Scores(
        ...     samples=np.array([10, 300]),
        ...     evaluated=np.array([10, 20]),
        ...     sums={"loss": np.array([9.0, 30.0]), "accuracy": np.array([5.0, 16.0])},
        ... )
        >>> (scores.sums["accuracy"] / scores.evaluated).tolist()
        [0.5, 0.8]
    """

    samples: Clients
    evaluated: Clients
    sums: dict[str, NDArray[np.float64]]
    metrics: tuple[Metric, ...] = (accuracy(),)


class Snapshot(NamedTuple):
    """What a runtime must find again after a restart: client states and work under way.

    Args:
        tensors: Named arrays, which are saved with the checkpoint.

    Examples:
        >>> sorted(Snapshot({"states/clients": np.array([4, 7])}).tensors)
        ['states/clients']
    """

    tensors: dict[str, NDArray[Any]]


@runtime_checkable
class Runtime(Protocol):
    """Where clients live. A runtime is made from a ``fedmom.Workload``.

    Replies to equal questions are equal, whatever the runtime, the number of workers or the
    order in which they come: clients draw by (seed, round, client) alone.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
        >>> runtime: Runtime = fedmom.LocalRuntime(workload)
        >>> runtime.ask(0, np.array([1, 3]), fedmom.start(workload).params)
        >>> runtime.under_way()
        [(1, 0), (3, 0)]
        >>> [block.clients.tolist() for block in runtime.replies()]
        [[1, 3]]
        >>> runtime.under_way()
        []
    """

    @property
    def workload(self) -> Workload:
        """What is run."""

    @property
    def runs_method(self) -> bool:
        """Whether clients run the method's own client and stages.

        A runtime whose clients only do plain local training says False. A run whose method has
        more than that is then refused: a stage is never silently absent.
        """

    def prepare(self, cohort: int, *, sums: bool) -> None:
        """Note what a run will look like, before its first question.

        Args:
            cohort: How many clients are usually asked at once: what is compiled for a number of
                clients is compiled for this one.
            sums: Whether replies may be added up on their way, in blocks with ``members``.
        """

    def ask(self, round_: int, clients: Clients, broadcast: Any) -> None:
        """Send the broadcast of a round to clients. Returns at once.

        Args:
            round_: The round, counted from 0.
            clients: The numbers of the clients, each once and none that is under way.
            broadcast: What the server sends, for most methods the model's parameters.
        """

    def block_sizes(self, round_: int, clients: Clients, broadcast: Any) -> Sequence[int]:
        """Return how many clients each block of replies would hold; nothing if it is not known.

        Where it is known, the server's programs compile while the clients compile theirs.

        Args:
            round_: The round.
            clients: Who would be asked.
            broadcast: What they would receive.
        """

    def replies(self, timeout: float | None = None) -> Iterator[Block | Failure]:
        """Yield replies as they come, until every asked client has answered or failed.

        Args:
            timeout: End after this many seconds without a reply, too; those who have not answered
                stay under way.

        Yields:
            Replies of one client or several. A client that fails is a ``Failure`` or does not
            come back; an error in the program itself is raised.
        """

    def under_way(self) -> list[tuple[int, int]]:
        """Return (client, round) of everybody who was asked and has not answered."""

    def cancel(self) -> None:
        """Forget everybody who was asked and has not answered."""

    def evaluate(self, params: Params, split: str, budget: Budget = None) -> Scores:
        """Let the clients evaluate a model on their own samples.

        Args:
            params: The model.
            split: ``train`` or ``test``.
            budget: The most samples in all; None evaluates all of them.

        Returns:
            Sums of the loss and of the metrics for every client that has samples.
        """

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have samples."""

    def commit(self) -> None:
        """Note that a round is done: ``snapshot`` returns this moment until the next one."""

    def snapshot(self) -> Snapshot:
        """Return what ``restore`` needs, as it was when the last round was done.

        A run may be stopped in the middle of a round; its checkpoint holds whole rounds only.

        Returns:
            The clients' states and who is under way, as named arrays.
        """

    def restore(self, snapshot: Snapshot, broadcast: Any) -> None:
        """Resume from a snapshot.

        Args:
            snapshot: What ``snapshot`` has returned, here or in another runtime.
            broadcast: Shows the form of what is sent.
        """

    def close(self) -> None:
        """Release threads and connections."""


@runtime_checkable
class Clocked(Protocol):
    """A runtime in simulated time."""

    @property
    def simulated_seconds(self) -> float:
        """How long the last round took."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Numbers about the last round, for its record."""
