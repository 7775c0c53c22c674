"""Rules that combine the updates of a round."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.base import Reported, Rule, over_replies
from fedmom.algorithms.matrices import TINY, as_matrix
from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params, Weighting


@checked
def mean(weighting: Weighting = "population") -> Rule:
    """The weighted mean of the updates.

    Args:
        weighting: ``population``: n_k over the samples of all clients, the paper's p_k, which do
            not add up to one over a cohort. ``cohort``: n_k over the cohort's samples.
            ``uniform``: one over the number of replies.

    Returns:
        A rule that needs a running sum only.

    Examples:
        >>> rule = mean("cohort")
        >>> rule.needs, rule.scale(20.0, 1000)
        ('sum', 0.05)
    """
    scale = _over_population if weighting == "population" else over_replies
    return Rule(weigh_by(weighting), scale, name="mean")


@checked
def trimmed_mean(weighting: Weighting = "uniform", *, share: float = 0.1) -> Rule:
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018).

    Args:
        weighting: ``uniform``, or ``cohort``, where a client that claims many samples counts more.
        share: How much of the weight is left out at either end, in [0, 0.5).

    Returns:
        A rule that needs every reply.

    Examples:
        >>> rows = {"w": jnp.array([[1.0], [2.0], [3.0], [100.0]])}
        >>> aggregate, _, _ = trimmed_mean(share=0.25).each(rows, jnp.ones(4), ())
        >>> aggregate["w"].tolist()
        [2.5]
    """
    if not 0 <= share < 0.5:
        raise FedMomError(f"trimmed_mean: share={share} is not in [0, 0.5).")
    return _by_coordinate("trimmed_mean", weighting, _trimmed, share)


@checked
def median(weighting: Weighting = "uniform") -> Rule:
    """The median of each coordinate, weighted (Yin et al. 2018).

    Half of the weight is below it and half above; between two values, it is their mean.

    Args:
        weighting: ``uniform``, or ``cohort``, where a client that claims many samples counts more.

    Returns:
        A rule that needs every reply.

    Examples:
        >>> rows = {"w": jnp.array([[1.0], [2.0], [100.0]])}
        >>> median().each(rows, jnp.array([1.0, 1.0, 1.0]), ())[0]["w"].tolist()
        [2.0]
    """
    return _by_coordinate("median", weighting, _middle)


def _trimmed(values: jax.Array, weights: jax.Array, below: jax.Array, share: float) -> jax.Array:
    total = jnp.sum(weights, 0)
    # A little more than the share: 0.3 of 10 is 3, which a sum in 32 bits need not be.
    cut = total * (share + 1e-6)
    kept = jnp.where((below + weights > cut) & (total - below > cut), weights, 0)
    return jnp.sum(values * kept, 0) / jnp.maximum(jnp.sum(kept, 0), TINY)


def _middle(values: jax.Array, weights: jax.Array, below: jax.Array) -> jax.Array:
    total = jnp.sum(weights, 0)
    half, slack = total / 2, total * 1e-6  # sums in 32 bits round
    low = jnp.argmax(below + weights >= half - slack, axis=0)
    high = jnp.argmax(below + weights > half + slack, axis=0)
    low, high = (jnp.take_along_axis(values, at[None], 0)[0] for at in (low, high))
    return (low + high) / 2


@lru_cache  # equal rules are one object, so that runs share compiled programs
def _by_coordinate(name: str, weighting: Weighting, of_sorted: Any, *options: float) -> Rule:
    """Return a rule that takes each coordinate by itself, its values in order.

    ``of_sorted(values, weights, weight of all values below, *options)`` combines them.
    """
    if weighting == "population":
        raise FedMomError(
            f"{name} cannot use population weights, which do not add up to one over a cohort."
            " Use --weighting uniform, or cohort."
        )

    def each(rows: Params, weights: jax.Array, state: Any) -> tuple[Params, Any, Reported]:
        # One sort for all leaves: each would take half a second to compile.
        flat, whole = as_matrix(rows, weights)
        # Rows that do not count are sorted behind all others. Equal values are sorted by weight, or
        # the order of the replies would show.
        flat = jnp.where(weights[:, None] > 0, flat, jnp.inf)
        each_weight = jnp.broadcast_to(weights[:, None], flat.shape)
        values, sorted_weights = jax.lax.sort((flat, each_weight), dimension=0, num_keys=2)
        values = jnp.where(sorted_weights > 0, values, 0)
        below = jnp.cumsum(sorted_weights, axis=0) - sorted_weights
        return whole(of_sorted(values, sorted_weights, below, *options)), state, {}

    return Rule(weigh_by(weighting), each=each, name=name)


def weigh_by(weighting: Weighting) -> Any:
    """Return the function of sample counts that gives a weighting's weights."""
    return _alike if weighting == "uniform" else _by_samples


def _by_samples(samples: NDArray[np.int64]) -> NDArray[np.float64]:
    return samples.astype(np.float64)


def _alike(samples: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.ones(len(samples))


def _over_population(_weight: float, population: int) -> float:
    return 1.0 / population
