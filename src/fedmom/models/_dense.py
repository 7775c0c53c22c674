"""Dense layers of small batches, whose weights are overwritten where they lie.

On a CPU, a step of SGD on a layer of millions of weights takes as long as going through them. As
JAX differentiates ``x @ w``, XLA copies the weights, for it does not see that their update may
follow their last use, and the gradient is written and read again. Here that order is given, and
the gradient of a small batch is a sum of outer products, which XLA computes inside the update.
That reads the outputs' gradient once for every row of the weights, so it must be small.
"""

from functools import reduce

import jax
import jax.numpy as jnp

from fedmom.core.fusion import after, kernel

FEW = 16  # samples of a batch, up to which outer products cost less than their product
NEAR = 4096  # numbers that stay in a core's first cache, however often they are read


@jax.custom_vjp
def product(columns: jax.Array, w: jax.Array) -> jax.Array:
    """Return outputs (N, O) of inputs as columns (K, N) and weights (K, O)."""
    return jnp.einsum("kn,ko->no", columns, w)


def _forward(columns: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.einsum("kn,ko->no", columns, w), (columns, w)


def _backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    columns, w = residuals
    # To columns: to rows, the product with a large layer takes twice as long.
    back = jnp.einsum("ko,no->kn", w, g)
    g = after(g, back)
    if len(g) > FEW or g.size > NEAR:
        return back, jnp.einsum("kn,no->ko", columns, g)
    g = _held(g)
    return back, reduce(jnp.add, [columns[:, i, None] * g[i] for i in range(len(g))])


product.defvjp(_forward, _backward)


@kernel
def _held(g: jax.Array) -> jax.Array:
    """Return the same, computed once rather than for every weight."""
    return g
