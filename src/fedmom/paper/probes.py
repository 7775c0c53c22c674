"""Does FedAvg's step point to the target? Inner products <g_t, w_t - w*> along a finished run.

w* is the model after the last round, so it is known only at the end. A run is deterministic:
it is replayed, and no model but the last need be stored. FedAvg's server step is w' = w - η g,
so g_t is (w_t - w_{t+1}) / η.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from fedmom import runs
from fedmom.clients import full_gradient
from fedmom.config import Experiment
from fedmom.errors import FedMomError
from fedmom.models.base import Params
from fedmom.rounds import Record, State, start, train
from fedmom.runs import RunFolder
from fedmom.runtimes.local import LocalRuntime

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Directions:
    """Per round, <g_t, w_t - w*>: FedAvg's, FedSGD's at the same models, FedAvg's to another w*.

    ``elsewhere`` aims at the last model of another run from the same start, ``target``: the end
    of the run's own path is one that its steps must add up to.
    """

    fedavg: list[float]
    fedsgd: list[float] | None
    elsewhere: list[float] | None
    target: str | None


def directions(
    folder: Path,
    run: Path,
    experiment: Experiment,
    *,
    other: Path | None,
    fedsgd: bool,
    console: Console,
) -> Directions:
    """Return the inner products of a FedAvg run, from an earlier call's file or newly made."""
    file = folder / f"{run.name}.json"
    found = stored(folder, run, other)
    if found is None:
        found = replay(run, experiment, other=other, fedsgd=fedsgd, console=console)
        folder.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(file, json.dumps(asdict(found)).encode())
    return found


def stored(folder: Path, run: Path, other: Path | None) -> Directions | None:
    """Return what an earlier call has left, if it aimed at the same models."""
    file = folder / f"{run.name}.json"
    if not file.exists():
        return None
    found = Directions(**json.loads(file.read_bytes()))
    return found if found.target == (other.name if other else None) else None


def replay(
    run: Path, experiment: Experiment, *, other: Path | None, fedsgd: bool, console: Console
) -> Directions:
    """Run FedAvg again and take the inner products on the way."""
    config = experiment.config
    eta = float(config.server_lr)
    fresh = start(experiment.model, experiment.server, config.seed)
    last = _flat(_final(run, fresh).params)
    aside = None if other is None else _flat(_final(other, fresh).params)
    gradient = _fedsgd(experiment) if fedsgd else None
    products: dict[str, list[float]] = {"fedavg": [], "fedsgd": [], "elsewhere": []}
    params, here = fresh.params, _flat(fresh.params)
    steps = track(
        _loop(experiment, fresh),
        f"replaying {run.name}",
        total=config.rounds,
        console=console,
        disable=not console.is_terminal,
    )
    for state, record in steps:
        after = _flat(state.params)
        step = (here - after) / eta
        products["fedavg"].append(float(step @ (here - last)))
        if aside is not None:
            products["elsewhere"].append(float(step @ (here - aside)))
        if gradient is not None:
            products["fedsgd"].append(float(gradient(params, record) @ (here - last)))
        params, here = state.params, after
    if not np.array_equal(here, last):
        raise FedMomError(
            f"Replaying {run} did not end at its checkpoint: it was trained by another version or"
            " on another machine. Move the folder away, and call the command again."
        )
    return Directions(
        products["fedavg"],
        products["fedsgd"] or None,
        products["elsewhere"] or None,
        other.name if other else None,
    )


def _loop(experiment: Experiment, state: State) -> Iterator[tuple[State, Record]]:
    config = experiment.config
    return train(
        state,
        LocalRuntime(experiment.data, experiment.model, experiment.work, seed=config.seed),
        experiment.server,
        samples=experiment.data.train.size,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        weighting=config.weighting,
        seed=config.seed,
    )


def _fedsgd(experiment: Experiment) -> Callable[[Params, Record], Vector]:
    """Return FedSGD's g = Σ p_k γ ∇f_k(w), for the same cohorts, with the paper's weights."""
    data = experiment.data
    work = full_gradient(experiment.work.lr)
    runtime = LocalRuntime(data, experiment.model, work, seed=experiment.config.seed)
    weights = data.train.size / data.train.size.sum()

    def gradient(params: Params, record: Record) -> Vector:
        total: Vector = np.zeros(())
        chosen = np.array(record.cohort, np.int64)
        for reply in runtime.replies(params, record.round - 1, chosen):
            total = total + weights[reply.client] * _flat(reply.delta)
        return total

    return gradient


def _final(run: Path, template: State) -> State:
    state = RunFolder.open(run).restore(template)
    if state is None:
        raise FedMomError(f"{run} has no checkpoint. Move the folder away, and call again.")
    return state


def _flat(params: Params) -> Vector:
    """Return all parameters as one vector of doubles: sums over tens of thousands of products."""
    return np.concatenate([np.asarray(p, np.float64).ravel() for p in jax.tree.leaves(params)])
