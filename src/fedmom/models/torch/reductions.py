"""Operations that make one number of many, and running sums."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedmom.models.torch.graph import canonical
from fedmom.models.torch.table import op


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        x: Any, dim: Any = None, keepdim: bool = False, *, dtype: str | None = None, **_: Any
    ) -> Any:
        x = x if dtype is None else x.astype(canonical(dtype))
        return function(x, axis=None if dim == () else dim, keepdims=keepdim)

    return reduce


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "all": jnp.all,
    "amax": jnp.max,
    "amin": jnp.min,
    "any": jnp.any,
    "argmax": jnp.argmax,
    "argmin": jnp.argmin,
    "mean": jnp.mean,
    "prod": jnp.prod,
    "sum": jnp.sum,
}
for _name, _function in _REDUCTIONS.items():
    op(_name)(_reduced(_function))
op("max")(jnp.max)
op("min")(jnp.min)
op("max.other")(jnp.maximum)
op("min.other")(jnp.minimum)


def _with_places(find: Callable[..., Any]) -> Callable[..., Any]:
    def found(x: Any, dim: int, keepdim: bool = False) -> Any:
        """One of several equal entries has the gradient, as in PyTorch."""
        places = find(x, dim, keepdims=True)
        values = jnp.take_along_axis(x, places, dim)
        both = values, places
        return both if keepdim else tuple(jnp.squeeze(part, dim) for part in both)

    return found


op("max.dim")(_with_places(jnp.argmax))
op("min.dim")(_with_places(jnp.argmin))


@op("logsumexp")
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of a sum of exponentials."""
    return jax.nn.logsumexp(x, dim, keepdims=keepdim)


@op("softmax", "_softmax")
def softmax(x: Any, dim: int, dtype: Any = None, **_: Any) -> Any:
    """Exponentials that add up to 1."""
    return jax.nn.softmax(_typed(x, dtype), dim)


@op("log_softmax", "_log_softmax")
def log_softmax(x: Any, dim: int, dtype: Any = None, **_: Any) -> Any:
    """The logarithm of softmax."""
    return jax.nn.log_softmax(_typed(x, dtype), dim)


def _typed(x: Any, dtype: Any) -> Any:
    return x.astype(canonical(dtype)) if isinstance(dtype, str) else x


@op("var")
def var(x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False, **_: Any) -> Any:
    """The variance."""
    if isinstance(dim, bool):  # of all numbers: an overload without axes
        dim, correction = None, dim
    return jnp.var(x, axis=dim, ddof=1 if correction is None else correction, keepdims=keepdim)


@op("std")
def std(x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False, **_: Any) -> Any:
    """The standard deviation."""
    return jnp.sqrt(var(x, dim, correction, keepdim))


@op("var_mean")
def var_mean(x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False, **_: Any) -> Any:
    """The variance and the mean."""
    return var(x, dim, correction, keepdim), jnp.mean(x, axis=dim, keepdims=keepdim)


@op("linalg_vector_norm")
def vector_norm(
    x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: str | None = None
) -> Any:
    """A norm; that of zeros has the gradient 0."""
    x = _typed(x, dtype)
    total = functools.partial(jnp.sum, axis=dim, keepdims=keepdim)
    if order in (float("inf"), float("-inf")):
        extreme = jnp.max if order > 0 else jnp.min
        return extreme(jnp.abs(x), axis=dim, keepdims=keepdim)
    if order == 1:
        return total(jnp.abs(x))
    powers = total(jnp.abs(x) ** order)
    safe = jnp.where(powers > 0, powers, 1) ** (1 / order)
    return jnp.where(powers > 0, safe, 0)


@op("norm", "norm.ScalarOpt_dim")
def norm(x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """A norm."""
    return vector_norm(x, 2 if order is None else order, dim, keepdim)


@op("cumsum")
def cumsum(x: Any, dim: int, dtype: str | None = None, **_: Any) -> Any:
    """Running sums; whole numbers for truth values."""
    return jnp.cumsum(_typed(x, dtype), dim)


@op("cumprod")
def cumprod(x: Any, dim: int, dtype: str | None = None, **_: Any) -> Any:
    """Running products."""
    return jnp.cumprod(_typed(x, dtype), dim)
