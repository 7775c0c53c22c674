"""Dense layers of small batches, whose weights are overwritten where they lie.

On a CPU, a step of SGD on a layer of millions of weights takes as long as going through them.
``x @ w`` as JAX differentiates it goes through them nine times: XLA copies the weights, as it does
not see that their update may follow their last use, and the gradient is written and read again.
Here that order is given, and the gradient of a small batch is a sum of outer products, which XLA
computes inside the update: four times.
"""

from functools import reduce

import jax
import jax.numpy as jnp

from fedmom.models._kernels import after, kernel

FEW = 16  # rows of a batch, up to which its outer products cost less than their product


@jax.custom_vjp
def product(x: jax.Array, w: jax.Array) -> jax.Array:
    """Return x @ w, of rows (N, K) and weights (K, O)."""
    return x @ w


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ w, (x, w)


def _backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = residuals
    dx = jnp.einsum("no,ko->nk", g, w)
    g = after(g, dx)
    if len(g) > FEW:
        return dx, jnp.einsum("nk,no->ko", x, g)
    g = _held(g)
    return dx, reduce(jnp.add, [x[i][:, None] * g[i] for i in range(len(g))])


product.defvjp(_forward, _backward)


@kernel
def _held(g: jax.Array) -> jax.Array:
    """Return the same, computed once rather than for every weight."""
    return g
