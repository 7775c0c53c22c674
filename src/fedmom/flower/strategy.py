"""FedMom and FedAvg as strategies for Flower apps; the client apps need no change."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from numpy.typing import NDArray

from fedmom.algorithms import schedules
from fedmom.algorithms.rules import mean
from fedmom.algorithms.server import fedavg, fedmom
from fedmom.core.errors import FedMomError
from fedmom.core.files import make_folder, parse_json, read_file, user_path, write_atomic
from fedmom.core.types import Params, Weighting
from fedmom.experiments.checkpoints import NEWEST, Checkpoint, load, read_pointer, save
from fedmom.runtimes.devices import wire
from fedmom.runtimes.devices.link import SECONDS_BETWEEN_LOOKS, Inbox, Link, Node, one_line
from fedmom.runtimes.devices.population import natural
from fedmom.runtimes.devices.wire import UnusableReplyError
from fedmom.training.loop import State
from fedmom.training.samplers import uniform

ARRAYS, CONFIG, SAMPLES = "arrays", "config", "num-examples"  # as Flower's own strategies name them
NODES = "nodes.json"


class FedMom(Strategy):
    """The paper's algorithm for a Flower app: only the strategy of its server app changes.

    Clients do as with Flower's ``FedAvg``: they receive arrays, train them, and send them back
    with their number of samples. Cohorts are drawn by the seed. Replies that are not finite, or
    not of the model's form, are left out. With a folder, momentum and model survive the process:
    ``start`` resumes after the last saved round.

    Args:
        learning_rate: η, a number or a schedule over rounds; "auto" is K/M for population
            weights, as in the paper, else 1.
        momentum: β in [0, 1).
        clients_per_round: M.
        weighting: ``population`` (n_k over the samples of all nodes ever seen), ``cohort`` or
            ``uniform``.
        min_available_nodes: How many nodes must be online before the first round.
        least: The fewest replies that make a round; with fewer, the round is repeated.
        max_samples: The most samples that are accepted of a node.
        seed: The seed of the cohorts.
        folder: Where to keep model, momentum and the nodes' numbers of samples; None: nowhere.
        evaluate: Whether all nodes evaluate every model.

    Examples:
        >>> from fedmom.flower import FedMom
        >>> strategy = FedMom(momentum=0.9, clients_per_round=2, seed=1)
        >>> strategy.momentum
        0.9
    """

    def __init__(
        self,
        learning_rate: float | str = "auto",
        momentum: float = 0.9,
        *,
        clients_per_round: int = 2,
        weighting: Weighting = "population",
        min_available_nodes: int = 2,
        least: int = 1,
        max_samples: int = 1_000_000,
        seed: int = 0,
        folder: str | Path | None = None,
        evaluate: bool = True,
    ) -> None:
        if min(clients_per_round, least, max_samples) < 1:
            raise FedMomError(
                f"clients_per_round {clients_per_round}, least {least} and max_samples"
                f" {max_samples} must be 1 or more."
            )
        if min_available_nodes < clients_per_round:
            raise FedMomError(
                f"min_available_nodes {min_available_nodes} must be at least clients_per_round"
                f" {clients_per_round}."
            )
        self.learning_rate, self.momentum = learning_rate, momentum
        self.clients_per_round, self.min_available_nodes = clients_per_round, min_available_nodes
        self.weighting, self.least, self.seed, self.evaluate = weighting, least, seed, evaluate
        self.max_samples, self._rule = max_samples, mean(weighting)
        self._folder = None if folder is None else user_path(folder, "folder")
        # The samples of every node ever seen, so that population weights do not forget absent ones.
        self._samples: dict[str, int | None] = _read_samples(self._folder)
        self._asked: dict[int, str] = {}  # the key of every node that was asked
        self._state: State | None = None
        self._ttl = 3600.0  # seconds until a message is no longer worth answering

    def optimizer(self, learning_rate: Any) -> optax.GradientTransformation:
        """Return the server's optimizer."""
        return fedmom(learning_rate, self.momentum)

    def summary(self) -> None:
        """Log what the strategy is."""
        log(
            INFO,
            "%s: learning rate %s, momentum %s, %s weights, %s clients per round, seed %s",
            *(type(self).__name__, self.learning_rate, self.momentum, self.weighting),
            *(self.clients_per_round, self.seed),
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train until ``num_rounds`` rounds are done, those of an earlier process included.

        The arguments are those of Flower's ``Strategy.start``.
        """
        self._begin(initial_arrays)
        self._ttl = timeout
        result = Result()
        while self._now().round < num_rounds:
            done = self._now().round + 1
            messages = list(self.configure_train(done, self._arrays(), _copy(train_config), grid))
            replies = _answers(grid, messages, timeout, wire.bytes_of(self._now().params))
            arrays, metrics = self.aggregate_train(done, replies)
            if arrays is None:
                log(WARNING, "Round %s had too few replies and is repeated.", done)
                time.sleep(1)
                continue
            result.arrays = arrays
            if metrics is not None:
                result.train_metrics_clientapp[done] = metrics
            asked = list(self.configure_evaluate(done, arrays, _copy(evaluate_config), grid))
            if asked:
                found = self.aggregate_evaluate(done, _answers(grid, asked, timeout, 0))
                if found is not None:
                    result.evaluate_metrics_clientapp[done] = found
            if evaluate_fn and (central := evaluate_fn(done, arrays)) is not None:
                result.evaluate_metrics_serverapp[done] = central
        result.arrays = self._arrays()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's nodes, by the seed, and make their messages."""
        if self._state is None:
            self._begin(arrays)
        nodes = self._available(grid)
        alike = np.ones(len(nodes), np.int64)
        drawn = uniform(self.seed, server_round - 1, self.clients_per_round, alike)
        cohort = [nodes[k] for k in drawn.tolist()]
        self._asked = {node.id: node.key for node in cohort}
        return _messages(server_round, arrays, config, cohort, MessageType.TRAIN, self._ttl)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step on the pseudo-gradient of the replies that can be used; None with too few."""
        state = self._now()
        sent = {name: np.asarray(value) for name, value in state.params.items()}
        counted = []
        for reply in replies:
            try:
                counted.append(self._counted(reply, sent))
            except UnusableReplyError as error:
                log(WARNING, "Round %s: a reply does not count: %s", server_round, error)
        if len(counted) < self.least:
            return None, None
        samples = np.array([n for n, _, _ in counted], np.int64)
        weights = np.asarray(self._rule.weigh(samples), np.float64)
        scale = self._rule.scale(float(weights.sum()), self._total())
        gradient = {
            name: sum(
                w * (sent[name] - a[name].astype(np.float64))
                for w, (_, a, _) in zip(weights, counted, strict=True)
            )
            * scale
            for name in sent
        }
        self._step(state, gradient)
        return self._arrays(), _mean_metrics([(n, m) for n, _, m in counted])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all nodes that are online to evaluate a model."""
        if not self.evaluate:
            return []
        nodes = self._online(grid)
        return _messages(server_round, arrays, config, nodes, MessageType.EVALUATE, self._ttl)

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Return the mean of what nodes measured, weighted by their samples."""
        found = []
        for reply in replies:
            if reply.has_content():
                try:
                    found.append(self._metrics(reply.content))
                except UnusableReplyError as error:
                    log(WARNING, "An evaluation does not count: %s", error)
        return _mean_metrics(found) if found else None

    def _available(self, grid: Grid) -> list[Node]:
        """Return the nodes that are online, in the order of their names, once there are enough."""
        told = 0.0
        while len(nodes := self._online(grid)) < self.min_available_nodes:
            if time.monotonic() - told > 10:
                told = time.monotonic()
                log(INFO, "Waiting for nodes: %s of %s", len(nodes), self.min_available_nodes)
            time.sleep(1)
        return nodes

    def _online(self, grid: Grid) -> list[Node]:
        """Return the nodes that are online, in the order of their names."""
        nodes = sorted(Link(grid).nodes(), key=lambda node: (natural(node.name), node.key))
        for node in nodes:
            self._samples.setdefault(node.key, None)
        return nodes

    def _total(self) -> int:
        """Return n, the samples of all nodes; one whose samples are unknown counts as average."""
        told = [samples for samples in self._samples.values() if samples is not None]
        return round(sum(told) / len(told) * len(self._samples)) if told else 0

    def _counted(
        self, reply: Message, sent: dict[str, NDArray[Any]]
    ) -> tuple[int, dict[str, NDArray[Any]], MetricRecord]:
        """Return a reply's samples, arrays and metrics, if all of it can be used."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            raise UnusableReplyError(f"node {node}: {one_line(reply.error.reason)}")
        if node not in self._asked:
            raise UnusableReplyError(f"node {node} was not asked, or has answered already")
        samples, metrics = self._metrics(reply.content)
        arrays = wire.named_arrays(reply.content, ARRAYS, sent)
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise UnusableReplyError(f"node {node}: {name} is not finite")
        self._samples[self._asked.pop(node)] = samples
        return samples, arrays, metrics

    def _metrics(self, content: RecordDict) -> tuple[int, MetricRecord]:
        """Return a reply's number of samples, and its metrics."""
        records = list(content.metric_records.values())
        told = records[0].get(SAMPLES) if len(records) == 1 else None
        samples = int(told) if isinstance(told, int | float) and float(told).is_integer() else 0
        if not 0 < samples <= self.max_samples:
            raise UnusableReplyError(
                f"it has no {SAMPLES} from 1 to {self.max_samples} (max_samples): {told!r}"[:200]
            )
        return samples, records[0]

    def _rate(self) -> Any:
        if self.learning_rate != "auto":
            return schedules.parse(self.learning_rate)
        if self.weighting != "population":
            return 1.0
        return max(1.0, len(self._samples) / self.clients_per_round)

    def _step(self, state: State, gradient: Params) -> None:
        """Let the server step, and save what comes out. Only floats are trained."""
        trained = {name: old for name, old in state.params.items() if old.dtype.kind == "f"}
        typed = {name: np.asarray(gradient[name], old.dtype) for name, old in trained.items()}
        updates, server = self.optimizer(self._rate()).update(typed, state.server, trained)
        stepped = optax.apply_updates(trained, updates)
        params = {
            n: np.asarray(stepped[n] if n in trained else np.round(old - gradient[n]), old.dtype)
            for n, old in state.params.items()
        }
        if not all(np.isfinite(value).all() for value in params.values()):
            raise FedMomError(
                f"Round {state.round + 1}: the server's step is not finite. Use a smaller"
                " learning_rate, or a smaller learning rate on the clients."
            )
        self._state = State(state.round + 1, params, server)
        if self._folder is not None:
            make_folder(self._folder)
            write_atomic(self._folder / NODES, json.dumps(self._samples, indent=2).encode())
            # The model as NumPy's arrays: JAX would make 64-bit numbers 32-bit ones.
            save(self._folder, Checkpoint(self._state._replace(params={}), params))

    def _begin(self, arrays: ArrayRecord) -> None:
        """Start with the first model, or resume with the saved one."""
        params = {name: array.numpy() for name, array in arrays.items()}
        floats = {name: a for name, a in params.items() if a.dtype.kind == "f"}
        server = jax.tree.map(np.asarray, self.optimizer(1.0).init(floats))
        self._state = State(0, params, server)
        if self._folder is not None and (self._folder / NEWEST).exists():
            pointer = read_pointer(self._folder / NEWEST)
            kept = load(self._folder, pointer, self._state._replace(params={}))
            form = {name: (a.shape, a.dtype) for name, a in params.items()}
            if form != {name: (a.shape, a.dtype) for name, a in kept.runtime.items()}:
                raise FedMomError(
                    f"{self._folder} holds another model than the one to be trained. Choose another"
                    " folder."
                )
            server = jax.tree.map(np.asarray, kept.state.server)
            self._state = State(pointer.round, {n: kept.runtime[n] for n in params}, server)
            log(INFO, "Resuming after round %s, from %s", pointer.round, self._folder)

    def _now(self) -> State:
        if self._state is None:
            raise FedMomError("The strategy has no model yet: call start, or configure_train.")
        return self._state

    def _arrays(self) -> ArrayRecord:
        params = self._now().params
        return ArrayRecord({name: Array(np.asarray(value)) for name, value in params.items()})


class FedAvg(FedMom):
    """FedAvg with the paper's population weights, or others, and all else as ``FedMom``.

    Args:
        learning_rate: η, a number, a schedule, or "auto".
        **options: As of ``FedMom``.

    Examples:
        >>> from fedmom.flower import FedAvg
        >>> FedAvg(1.0, clients_per_round=2, weighting="cohort").momentum
        0.0
    """

    def __init__(self, learning_rate: float | str = "auto", **options: Any) -> None:
        super().__init__(learning_rate, 0.0, **options)

    def optimizer(self, learning_rate: Any) -> optax.GradientTransformation:
        """Return the server's optimizer."""
        return fedavg(learning_rate)


def _messages(
    round_: int, arrays: ArrayRecord, config: ConfigRecord, nodes: list[Node], kind: str, ttl: float
) -> list[Message]:
    config["server-round"] = round_
    content = RecordDict({ARRAYS: arrays, CONFIG: config})
    return [Message(content, node.id, kind, ttl=ttl, group_id=str(round_)) for node in nodes]


def _answers(grid: Grid, messages: list[Message], timeout: float, most: int) -> Iterator[Message]:
    """Send messages and yield the replies: no larger than they may be, and of whom was asked."""
    ids = grid.push_messages(messages)
    sent = {i: m.metadata.dst_node_id for i, m in zip(ids, messages, strict=True) if i}
    inbox, end = Inbox(grid), time.monotonic() + timeout
    while sent and time.monotonic() < end:
        for reply in inbox.take(sorted(sent), most):
            node, fault, message = sent.pop(reply.asked, None), reply.fault, reply.message
            # Errors may be the SuperLink's own. All else says itself whom it is from.
            if message and not message.has_error() and message.metadata.src_node_id != node:
                fault = f"the reply of node {node} says that it is another's"
            if fault or message is None:
                log(WARNING, "A reply does not count: %s", fault)
            else:
                yield message
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _mean_metrics(found: list[tuple[int, MetricRecord]]) -> MetricRecord:
    """Return the means of the metrics that all have, weighted by samples."""
    shared = set.intersection(*(set(metrics) for _, metrics in found)) - {SAMPLES}
    weights = [samples for samples, _ in found]
    means: dict[str, Any] = {}
    for name in sorted(shared):
        values = [metrics[name] for _, metrics in found]
        if all(isinstance(v, int | float) and np.isfinite(v) for v in values):
            means[name] = float(np.average(values, weights=weights))
    return MetricRecord({**means, SAMPLES: sum(weights)})


def _copy(config: ConfigRecord | None) -> ConfigRecord:
    return ConfigRecord(dict(config or {}))


def _read_samples(folder: Path | None) -> dict[str, int | None]:
    """Return the samples of nodes that a folder knows, by their keys."""
    if folder is None or not (folder / NODES).exists():
        return {}
    try:
        found = parse_json(read_file(folder / NODES))
        return {str(k): None if n is None else int(n) for k, n in found.items()}
    except (ValueError, AttributeError, TypeError, OverflowError):
        raise FedMomError(f"{folder / NODES} is damaged. Remove it.") from None
