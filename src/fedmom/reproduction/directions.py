"""Does FedAvg's step point to the target? Inner products <g_t, w_t - w*> along a finished run.

w* is the model after the last round, so it is known only at the end. A run is deterministic:
it is replayed, and no model but the last need be stored. FedAvg's server step is w' = w - η g,
so g_t is (w_t - w_{t+1}) / η.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from rich.console import Console

from fedmom.algorithms.local_work import full_gradient
from fedmom.core.errors import FedMomError
from fedmom.core.files import make_folder, parse_json, read_file, write_atomic
from fedmom.core.progress import track
from fedmom.core.types import Params
from fedmom.experiments.build import Experiment
from fedmom.experiments.folder import RunFolder
from fedmom.runtimes.base import Block
from fedmom.training.loop import Record, State

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Directions:
    """Per round, <g_t, w_t - w*>: FedAvg's, FedSGD's at the same models, FedAvg's to another w*.

    ``elsewhere`` aims at the last model of another run from the same start, ``target``: the end
    of the run's own path is one that its steps must add up to.
    """

    fedavg: list[float]
    fedsgd: list[float] | None = None
    elsewhere: list[float] | None = None
    target: str | None = None
    # The same over |g| |w - w*|: a longer step has a larger product, not a better direction.
    fedavg_cosine: list[float] | None = None
    fedsgd_cosine: list[float] | None = None


def store(folder: Path, run: Path, made: Directions) -> None:
    """Keep the inner products of a run."""
    make_folder(folder)
    write_atomic(folder / f"{run.name}.json", json.dumps(asdict(made)).encode())


def stored(folder: Path, run: Path, other: Path | None) -> Directions | None:
    """Return the inner products that were kept, if they aim at the same models."""
    file = folder / f"{run.name}.json"
    if not file.exists():
        return None
    try:
        known = Directions(**parse_json(read_file(file)))
    except (ValueError, TypeError) as error:
        if isinstance(error, FedMomError):
            raise
        raise FedMomError(f"{file} is damaged. Remove it, and run the command again.") from None
    return known if known.target == (other.name if other else None) else None


def replay(
    run: Path, experiment: Experiment, *, other: Path | None, fedsgd: bool, console: Console
) -> Directions:
    """Run FedAvg again and record the inner products.

    Args:
        run: The run's folder.
        experiment: Its parts.
        other: The folder of another run, whose last model to aim at as well.
        fedsgd: Whether to compute FedSGD's gradients at the same models, too.
        console: Where the progress is shown.
    """
    start = experiment.start()
    last = _last_model(run, start)
    aside = None if other is None else _last_model(other, start)
    products: dict[str, list[float]] = defaultdict(list)
    eta, rounds = float(experiment.config.server_lr), experiment.config.rounds
    params, here = start.params, _flat(start.params)
    with ExitStack() as stack:
        runtime = stack.enter_context(closing(experiment.runtime()))
        gradient = stack.enter_context(_fedsgd_gradient(experiment)) if fedsgd else None
        steps = experiment.train(start, runtime)
        for state, record in track(steps, f"replaying {run.name}", total=rounds, console=console):
            after = _flat(state.params)
            taken = {"fedavg": (here - after) / eta}
            if gradient is not None:
                taken["fedsgd"] = gradient(params, record)
            for method, step in taken.items():
                products[method].append(float(step @ (here - last)))
                products[f"{method}_cosine"].append(_cosine(step, here - last))
            if aside is not None:
                products["elsewhere"].append(float(taken["fedavg"] @ (here - aside)))
            params, here = state.params, after
    if not np.array_equal(here, last):
        raise FedMomError(
            f"Replaying {run} did not end at its checkpoint: it was trained by another version or"
            " on another machine. Move the folder away, and run the command again."
        )
    return Directions(target=other.name if other else None, **products)


@contextmanager
def _fedsgd_gradient(experiment: Experiment) -> Iterator[Callable[[Params, Record], Vector]]:
    """Give a function for FedSGD's g = Σ p_k γ ∇f_k(w), with the cohort of a round at a model."""
    sizes = experiment.data.train.size
    weights = sizes / sizes.sum()  # the paper's

    def gradient(params: Params, record: Record) -> Vector:
        total: Vector = np.zeros(())
        runtime.ask(record.round - 1, np.array(record.cohort, np.int64), params)
        for reply in runtime.replies():
            if not isinstance(reply, Block):
                raise FedMomError(f"Client {reply.client} sent no gradient: {reply.reason}.")
            rows = np.asarray(_flat_rows(reply.update), np.float64)
            for client, row in zip(reply.clients.tolist(), rows, strict=True):
                total = total + weights[client] * row
        return total

    with closing(experiment.runtime(full_gradient(experiment.work.lr))) as runtime:
        yield gradient


def _last_model(run: Path, template: State) -> Vector:
    checkpoint = RunFolder.open(run).restore(template)
    if checkpoint is None:
        raise FedMomError(
            f"{run} has no checkpoint. Move the folder away, and run the command again."
        )
    return _flat(checkpoint.state.params)


def _cosine(one: Vector, other: Vector) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


def _flat(params: Params) -> Vector:
    """Return all parameters as one vector of doubles: sums over tens of thousands of products."""
    return np.asarray(ravel_pytree(params)[0], np.float64)


@jax.jit
def _flat_rows(update: Params) -> jax.Array:
    return jax.vmap(lambda row: ravel_pytree(row)[0])(update)
