"""Operations on each number by itself: arithmetic, comparisons and activations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from fedmom.models.torch.graph import canonical
from fedmom.models.torch.table import op

_SAME: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "acos": jnp.arccos,
    "asin": jnp.arcsin,
    "atan": jnp.arctan,
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_not": jnp.bitwise_not,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "eq": jnp.equal,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "floor_divide": jnp.floor_divide,
    "fmod": jnp.fmod,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "le": jnp.less_equal,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logaddexp": jnp.logaddexp,
    "logical_and": jnp.logical_and,
    "logical_not": jnp.logical_not,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": jnp.less,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mish": jax.nn.mish,
    "mul": jnp.multiply,
    "multiply": jnp.multiply,
    "ne": jnp.not_equal,
    "neg": jnp.negative,
    "pow": jnp.power,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "remainder": jnp.remainder,
    "round": jnp.round,
    "rsqrt": lax.rsqrt,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "softsign": jax.nn.soft_sign,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
    "where": jnp.where,
}
for _name, _function in _SAME.items():
    op(_name)(_function)


@op("add")
def add(a: Any, b: Any, alpha: Any = 1) -> Any:
    """a + alpha b."""
    return a + (b if alpha == 1 else alpha * b)


@op("sub", "subtract")
def sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    """a - alpha b."""
    return a - (b if alpha == 1 else alpha * b)


@op("rsub")
def rsub(a: Any, b: Any, alpha: Any = 1) -> Any:
    """b - alpha a."""
    return sub(b, a, alpha)


@op("div", "divide", "true_divide")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    """a / b, maybe rounded."""
    if rounding_mode == "floor":
        return jnp.floor_divide(a, b)
    return jnp.true_divide(a, b) if rounding_mode is None else jnp.trunc(a / b)


@op("addcmul")
def addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    """a + value b c."""
    return a + value * b * c


@op("addcdiv")
def addcdiv(a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    """a + value b / c."""
    return a + value * b / c


@op("clamp", "clip")
def clamp(x: Any, least: Any = None, most: Any = None) -> Any:
    """Values between two bounds."""
    return jnp.clip(x, least, most)


@op("clamp_min")
def clamp_min(x: Any, least: Any) -> Any:
    """Values of at least a bound."""
    return jnp.clip(x, least)


@op("clamp_max")
def clamp_max(x: Any, most: Any) -> Any:
    """Values of at most a bound."""
    return jnp.clip(x, None, most)


@op("hardtanh")
def hardtanh(x: Any, least: Any = -1.0, most: Any = 1.0) -> Any:
    """The identity between two bounds."""
    return jnp.where((x > least) & (x < most), x, lax.stop_gradient(jnp.clip(x, least, most)))


@op("leaky_relu")
def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    """A slope below 0."""
    return jnp.where(x > 0, x, slope * x)


@op("prelu")
def prelu(x: Any, weight: Any) -> Any:
    """A slope below 0 that is trained, one for all channels or one for each."""
    shaped = weight if weight.size == 1 else weight.reshape(-1, *(1,) * (x.ndim - 2))
    return jnp.where(x > 0, x, shaped * x)


@op("elu")
def elu(x: Any, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Any:
    """An exponential below 0."""
    below = alpha * jnp.expm1(input_scale * jnp.minimum(x, 0))
    return scale * jnp.where(x > 0, x, below)


@op("celu")
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """An exponential below 0 with a smooth joint."""
    return jax.nn.celu(x, alpha)


@op("softplus")
def softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    """log(1 + e^(beta x)) / beta, and x above a threshold."""
    small = jnp.where(beta * x > threshold, 0, x)
    return jnp.where(beta * x > threshold, x, jnp.logaddexp(beta * small, 0.0) / beta)


@op("threshold")
def threshold(x: Any, bound: Any, value: Any) -> Any:
    """Another value where a bound is not exceeded."""
    return jnp.where(x > bound, x, value)


@op("hardshrink")
def hardshrink(x: Any, bound: Any = 0.5) -> Any:
    """Zero near zero."""
    return jnp.where(jnp.abs(x) > bound, x, 0)


@op("softshrink")
def softshrink(x: Any, bound: Any = 0.5) -> Any:
    """Shrink towards zero by a bound."""
    return jnp.where(x > bound, x - bound, jnp.where(x < -bound, x + bound, 0))


@op("gelu")
def gelu(x: Any, approximate: str = "none") -> Any:
    """x times the normal distribution function."""
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@op("glu")
def glu(x: Any, dim: int = -1) -> Any:
    """One half times the sigmoid of the other."""
    return jax.nn.glu(x, dim)


@op("nan_to_num")
def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    """Replace what is not finite."""
    return jnp.nan_to_num(x, nan=nan or 0.0, posinf=posinf, neginf=neginf)


@op("masked_fill")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Another value where the mask is true."""
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


@op("clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh", "positive")
def clone(x: Any) -> Any:
    """The same values."""
    return x


@op("detach")
def detach(x: Any) -> Any:
    """The same values without a gradient."""
    return lax.stop_gradient(x)


@op("to", "_to_copy", "type_as", "float", "double", "long", "int", "bool")
def to(x: Any, *rest: Any, dtype: str | None = None, **_where: Any) -> Any:
    """Values of another type. Devices do not matter."""
    other = next((part for part in rest if hasattr(part, "dtype")), None)
    if other is not None:
        return x.astype(other.dtype)
    dtype = dtype or next((part for part in rest if isinstance(part, str)), None)
    return x if dtype is None else jnp.asarray(x).astype(canonical(dtype))
