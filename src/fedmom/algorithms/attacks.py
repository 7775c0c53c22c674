"""Attacks by a share of the clients, to try rules with: simulated, never on real devices."""

from functools import lru_cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedmom.algorithms.base import Attack
from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between
from fedmom.data.federated import Features
from fedmom.models.metrics import attack_success

PATCH = 4  # pixels: the sides of a backdoor's trigger

Class = Annotated[int, Between(0, MOST)]


@checked
@lru_cache
def sign_flip(*, share: float = 0.1, scale: float = 1.0) -> Attack:
    """Send the negative of the update, times a scale.

    Args:
        share: The share of all clients that is hostile.
        scale: What the update is multiplied by, besides -1.

    Returns:
        An attack.

    Examples:
        >>> sign_flip(scale=10.0).forge({"w": jnp.array([1.0, -2.0])}, None)["w"].tolist()
        [-10.0, 20.0]
    """

    def forge(update: Params, _key: Any) -> Params:
        return jax.tree.map(lambda u: -scale * u, update)

    return Attack(_share("sign_flip", share), forge=forge, name="sign_flip")


@checked
@lru_cache
def gaussian(*, share: float = 0.1, scale: float = 10.0) -> Attack:
    """Send noise: a random direction, with a multiple of the update's norm.

    Args:
        share: The share of all clients that is hostile.
        scale: The norm of the noise over that of the client's own update.

    Returns:
        An attack.

    Examples:
        >>> noise = gaussian(scale=2.0).forge({"w": jnp.array([3.0, 4.0])}, jax.random.key(0))
        >>> round(float(jnp.linalg.norm(noise["w"])), 3)
        10.0
    """

    def forge(update: Params, key: jax.Array) -> Params:
        flat, whole = ravel_pytree(update)
        noise = jax.random.normal(key, flat.shape, flat.dtype)
        return whole(noise * (scale * jnp.linalg.norm(flat) / jnp.linalg.norm(noise)))

    return Attack(_share("gaussian", share), forge=forge, name="gaussian")


@checked
@lru_cache
def label_flip(*, share: float = 0.1) -> Attack:
    """Train on wrong labels: C - 1 - y instead of y, of C classes.

    Args:
        share: The share of all clients that is hostile.

    Returns:
        An attack.

    Examples:
        >>> features = Features("vector", (2,), classes=10)
        >>> label_flip().poison(jnp.zeros((2, 2)), jnp.array([0, 7]), features)[1].tolist()
        [9, 2]
    """

    def check(features: Features) -> None:
        if features.task not in ("classes", "sequence"):
            raise FedMomError(
                f"attack label_flip swaps classes, and these are {features.task} data. Use"
                " sign_flip."
            )

    def poison(x: jax.Array, y: jax.Array, features: Features) -> tuple[jax.Array, jax.Array]:
        return x, jnp.where(y >= 0, features.classes - 1 - y, y)

    return Attack(_share("label_flip", share), poison, check=check, name="label_flip")


@checked
@lru_cache
def backdoor(
    *, share: float = 0.1, target: Class = 0, part: float = 0.5, scale: float = 1.0
) -> Attack:
    """Teach the model to take images with a trigger for a target class (Bagdasaryan et al. 2020).

    The trigger is a chequered patch in a corner. The share of other classes' images that it turns
    into the target is ``attack_success`` in the evaluations.

    Args:
        share: The share of all clients that is hostile.
        target: The class.
        part: How much of each batch has the trigger, in (0, 1].
        scale: What the update is multiplied by, for it to outweigh the others.

    Returns:
        An attack, with its metric.

    Examples:
        >>> attack, features = backdoor(target=3), Features("image", (28, 28), classes=10)
        >>> x, y = attack.poison(jnp.zeros((4, 28, 28)), jnp.arange(4) + 5, features)
        >>> y.tolist(), float(x[0].sum()), float(x[3].sum())
        ([3, 3, 7, 8], 8.0, 0.0)
    """
    if not 0 < part <= 1:
        raise FedMomError(f"backdoor: part={part} is not in (0, 1].")

    def check(features: Features) -> None:
        if (features.kind, features.task) != ("image", "classes"):
            raise FedMomError(
                "attack backdoor puts its trigger into images with one class each, and these are"
                f" {features.kind} data of the task {features.task}. Use label_flip or sign_flip."
            )
        if target >= features.classes:
            raise FedMomError(
                f"backdoor: target={target} must be less than {features.classes}, the number of"
                " classes."
            )

    def poison(x: jax.Array, y: jax.Array, _features: Features) -> tuple[jax.Array, jax.Array]:
        bad = jnp.arange(len(y)) < round(part * len(y))
        images = jnp.where(bad.reshape((-1,) + (1,) * (x.ndim - 1)), _triggered(x), x)
        return images, jnp.where(bad, target, y)

    def forge(update: Params, _key: Any) -> Params:
        return jax.tree.map(lambda u: scale * u, update)

    metric = attack_success(target, _triggered)
    share = _share("backdoor", share)
    return Attack(share, poison, forge, metric=metric, check=check, name="backdoor")


@checked
@lru_cache
def alie(*, share: float = 0.1, z: float = 1.5) -> Attack:
    """A little is enough: stay just inside the honest spread (Baruch et al. 2019).

    All hostile clients send mean - z · deviation of the honest updates, coordinate by coordinate.

    Args:
        share: The share of all clients that is hostile.
        z: How many standard deviations.

    Returns:
        An attack that is computed on the server, by one who sees all replies.

    Examples:
        >>> float(alie(z=2.0).collude(jnp.array(1.0), jnp.array(0.25)))
        0.5
    """

    def collude(mean: Params, deviation: Params) -> Params:
        return jax.tree.map(lambda m, d: m - z * d, mean, deviation)

    return Attack(_share("alie", share), collude=collude, name="alie")


@checked
@lru_cache
def ipm(*, share: float = 0.1, scale: float = 2.0) -> Attack:
    """Inner-product manipulation: send the negative of the honest mean (Xie et al. 2020).

    Args:
        share: The share of all clients that is hostile.
        scale: What it is multiplied by. A small one hides among the honest updates.

    Returns:
        An attack that is computed on the server, by one who sees all replies.

    Examples:
        >>> float(ipm(scale=0.5).collude(jnp.array(1.0), jnp.array(0.25)))
        -0.5
    """

    def collude(mean: Params, _deviation: Params) -> Params:
        return optax.tree.scale(-scale, mean)

    return Attack(_share("ipm", share), collude=collude, name="ipm")


def _triggered(x: jax.Array) -> jax.Array:
    """Return images with a chequered patch in the last corner."""
    height, width = (min(PATCH, side) for side in x.shape[1:3])
    board = (jnp.arange(height)[:, None] + jnp.arange(width)) % 2
    patch = board.astype(x.dtype).reshape((height, width) + (1,) * (x.ndim - 3))
    return x.at[:, -height:, -width:].set(jnp.broadcast_to(patch, (height, width, *x.shape[3:])))


def _share(name: str, share: float) -> float:
    if not 0 < share < 1:
        raise FedMomError(f"{name}: share={share} is not in (0, 1).")
    return share
