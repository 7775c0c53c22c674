"""Whether a run's learning rate meets the condition of the corrected theorem."""

from dataclasses import replace

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms import schedules
from fedmom.core.prng import init_key
from fedmom.experiments.build import Experiment
from fedmom.runtimes.base import Block
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.theorems import CORRECTED_FEDMOM

Vector = NDArray[np.float32]
BATCHES = 4
ITERATIONS = 3
STEP = 0.01  # length of a difference, relative to the model's
FULL_GRADIENT = 256  # samples: FedSGD's gradient of a larger client takes too long


def sentence(experiment: Experiment) -> str:
    """Say whether γ meets the condition of the corrected theorem, with the numbers.

    L is a rough estimate, and B² is taken as 1, its smallest value. The theorem covers FedAvg,
    FedSGD and FedMom with plain local SGD and population weights.

    Args:
        experiment: The run.
    """
    config = experiment.config
    if not _covered(experiment):
        return (
            "The corrected theorem does not cover this run: it is about FedSGD, FedAvg and FedMom"
            " with plain SGD on the clients, uniform sampling and population weights."
        )
    smoothness = quick_smoothness(experiment)
    if not 0 < smoothness < float("inf"):
        return "L cannot be estimated at the first model: its gradients do not change, or overflow."
    setting = setting_of(experiment)
    constants = Constants(smoothness=smoothness, variance=0.0, gap=0.0)
    lr = max(schedules.at(experiment.work.lr, t) for t in (0, config.rounds - 1))
    largest = CORRECTED_FEDMOM.max_lr(constants, setting)
    held = CORRECTED_FEDMOM.applies(constants, setting, lr)
    place = "is at most" if held else "is above"
    rest = "" if held else " The bounds are loose, and it may well converge: docs/theory.md."
    return (
        f"lr {lr:g} {place} {largest:.2g}, the largest for which the corrected theorem bounds"
        f" this run (L ≈ {smoothness:.2g} at the first model, H = {setting.local_steps},"
        f" η = {setting.server_lr:g}, β = {setting.momentum:g}, K = {setting.clients},"
        f" M = {setting.per_round}).{rest}"
    )


def setting_of(experiment: Experiment) -> Setting:
    """Return a run in the terms of the theorems: η where it is largest, H of the mean client."""
    config, sizes = experiment.config, experiment.data.train.size
    eta = schedules.parse(config.server_lr)
    return Setting(
        clients=experiment.data.clients,
        per_round=config.clients_per_round,
        local_steps=experiment.work.count(0, round(sizes.mean())),
        server_lr=max(schedules.at(eta, t) for t in (0, config.rounds - 1)),
        momentum=config.momentum or 0.0,
        largest_weight=float(sizes.max() / sizes.sum()),
    )


def _covered(experiment: Experiment) -> bool:
    config = experiment.config
    return (
        config.algorithm in ("fedsgd", "fedavg", "fedmom")
        and config.weighting == "population"
        and (config.aggregate, config.sampler) == ("mean", "uniform")
        and config.pace.partition(":")[0] == "synchronous"
        and config.solver == "sgd"
        and config.prox == 0
        and (config.batch_size != "all" or experiment.data.train.size.min() <= FULL_GRADIENT)
    )


def quick_smoothness(experiment: Experiment) -> float:
    """Return the largest |∇f_k(w) - ∇f_k(w')| / |w - w'| seen near the first model.

    f_k is the mean over a few batches of the smallest client; w' moves by power iteration to
    where the quotient is large. It runs the program that the run's clients run, and NumPy for the
    rest, so that nothing else is compiled.
    """
    seed, device = experiment.config.seed, jax.devices()[0]
    # Bound to its device, as a run's models are, or the program would be compiled for both.
    params = jax.device_put(experiment.model.init(init_key(seed)), device)
    leaves, form = jax.tree.flatten(params)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    work = replace(experiment.work, lr=1.0, steps=1, epochs=None)
    runtime = experiment.runtime(work, workers=1)
    # As many clients as in a round, since their number may be part of the compiled program.
    smallest = int(np.argmin(experiment.data.train.size))
    cohort = np.full(experiment.config.clients_per_round, smallest)
    batches = 1 if work.batch_size is None else BATCHES

    def gradient(vector: Vector) -> Vector:
        parts = zip(np.split(vector, ends), leaves, strict=True)
        tree = jax.tree.unflatten(form, [part.reshape(leaf.shape) for part, leaf in parts])
        there = jax.device_put(tree, device)
        total = np.zeros_like(vector)
        for batch in range(batches):
            runtime.ask(batch, cohort, there)
            block = next(runtime.replies())
            assert isinstance(block, Block)
            total += _flat([leaf[0] for leaf in jax.tree.leaves(block.update)])
            runtime.cancel()
        return total / np.float32(batches)

    here = _flat(leaves)
    slope = gradient(here)
    length = STEP * float(np.linalg.norm(here))
    towards = np.random.default_rng(seed).normal(size=here.size).astype(np.float32)
    largest = 0.0
    for _ in range(ITERATIONS):
        moved = here + towards * np.float32(length / np.linalg.norm(towards))
        towards = gradient(moved) - slope
        largest = max(largest, float(np.linalg.norm(towards)) / length)
        if not 0 < largest < np.inf:
            break
    runtime.close()
    return largest


def _flat(leaves: list[jax.Array]) -> Vector:
    return np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in leaves])
