"""Parts of a program that XLA compiles by themselves, and an order for what it computes.

XLA for CPUs fuses a pass over an array into all that read it, and then computes it once for each
of them: patches of images, for one, are made again for every product. An optimization barrier
does not help, for it is gone before passes are fused. A call that is not inlined stays.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Kernel = Callable[..., Any]
_marked: Callable[..., Any]

try:
    from jax.experimental.xla_metadata import set_xla_metadata as _marked
except ImportError:  # an experiment of JAX: without it the same numbers take longer

    def _marked(**_: Any) -> Any:
        return contextlib.nullcontext()


_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextlib.contextmanager
def plain_calls() -> Iterator[None]:
    """Let kernels be the operations they consist of, for those who translate programs of JAX.

    Such a translator may trace with operations of its own, and a kernel would keep the trace.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def kernel(function: Kernel) -> Kernel:
    """Return the function as a call into which nothing is fused, and out of which nothing is.

    Arrays are given by position. What is given by keyword is static.

    Where XLA does not know the attribute, it inlines the call as it inlines every other.
    """

    def body(*arrays: Any, **static: Any) -> Any:
        with _marked(inlineable=None):  # or calls inside would have it, too
            return function(*arrays, **static)

    body.__name__ = function.__name__  # for profiles
    parameters = inspect.signature(function).parameters.values()
    static = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    jitted = jax.jit(body, static_argnames=static)

    @functools.wraps(function)
    def call(*arrays: Any, **given: Any) -> Any:
        if _plain.get():
            return function(*arrays, **given)
        with _marked(inlineable="false"):
            return jitted(*arrays, **given)

    return call


def after(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a``, once ``b`` is there.

    Weights that ``b`` was computed from can then be overwritten by what is computed from ``a``.
    XLA does not look for such an order, and copies them.
    """
    nothing = jnp.minimum(jnp.abs(lax.stop_gradient(b.reshape(-1)[0])), 0)
    return a + nothing
