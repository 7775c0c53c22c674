"""One round of local work and draw on quadratic clients: the moments of what the server sees.

A client's H steps give Δ_k = a_k (w - c_k) + n_k with a_k = 1 - (1 - γ h_k)^H, and the server sees
G = η Σ ω_k Δ_k = α w - b + n, with w and c_k measured from the minimum of f.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmom.theory.cohort_weights import weight_moments
from fedmom.theory.constants import Array
from fedmom.theory.quadratic import Plan, QuadraticClients


class RoundMoments(NamedTuple):
    """Means over the draw and the noise of G = α w - b + n; arrays of (γ, coordinate)."""

    a: Array
    b: Array
    aa: Array
    ab: Array
    bb: Array
    nn: Array


@dataclass(frozen=True, eq=False)
class Groups:
    """Clients with the same curvature, noise and steps taken together: g of them.

    For G = Σ_g a_g (Ω_g w - C_g) + n with Ω_g = η Σ ω_k and C_g = η Σ ω_k (c_k - w*) over the
    clients of a group, the arrays are E Ω, E C, E ΩΩ, E ΩC and E CC, and the sums of η² E ω_k².
    """

    curvature: Array  # (g, d)
    noise: Array  # (g, d)
    steps: Array  # (g, 1)
    epochs: int | None
    o: Array  # (g,)
    c: Array  # (g, d)
    oo: Array  # (g, g)
    oc: Array  # (d, g, g)
    cc: Array  # (d, g, g)
    squares: Array  # (g,)

    def moments(self, lr: Array) -> RoundMoments:
        """Return the moments of a round for every γ, arrays of (γ, d)."""
        x = lr[:, None, None] * self.curvature
        left = (1 - x) ** self.steps
        a = 1 - left
        noise = self.noise * lr[:, None, None] ** 2 * _gathered(x, left, self.steps, self.epochs)
        by_coordinate = np.ascontiguousarray(np.moveaxis(a, -1, 0))  # (d, γ, g)

        def quadratic(table: Array) -> Array:
            return np.einsum("drg,drg->rd", by_coordinate @ table, by_coordinate)

        return RoundMoments(
            a=np.einsum("rgd,g->rd", a, self.o),
            b=np.einsum("rgd,gd->rd", a, self.c),
            aa=quadratic(self.oo),
            ab=quadratic(self.oc),
            bb=quadratic(self.cc),
            nn=np.einsum("rgd,g->rd", noise, self.squares),
        )


def _gathered(x: Array, left: Array, steps: Array, epochs: int | None) -> Array:
    """Return the variance of Σ_j q^j n_j over H steps, q = 1 - x, for noise of variance 1.

    Batches drawn with replacement: Σ q^{2j}. The noise of the L batches of a shuffled epoch adds up
    to 0, so any two have covariance -1/L where each has variance 1 - 1/L: Σ q^{2j} - (Σ q^j)²/L.
    """
    if epochs is None:
        return _geometric(x * (2 - x), left**2, steps)
    batches = steps / epochs
    once = left if epochs == 1 else (1 - x) ** batches
    squares = _geometric(x * (2 - x), once**2, batches)
    total = _geometric(x, once, batches)
    return (squares - total**2 / batches) * _geometric(1 - once**2, left**2, np.asarray(epochs))


def _geometric(step: Array, power: Array, count: Array) -> Array:
    """Return Σ_{j<n} r^j for 1 - r = ``step`` and r^n = ``power``."""
    flat = np.abs(step) < 1e-12
    return np.where(flat, count, (1 - power) / np.where(flat, 1, step))


def grouped(clients: QuadraticClients, plan: Plan) -> Groups:
    """Return all that the moments of a round need, but for γ."""
    count = len(clients.sizes)
    eta = plan.eta(count)
    weights = weight_moments(clients.sizes, plan.per_round, plan.weighting, plan.sampler)
    steps = np.broadcast_to(np.asarray(plan.steps, float), (count,))
    rows = np.concatenate([steps[:, None], clients.curvature, clients.noise], axis=1)
    kinds, place = np.unique(rows, axis=0, return_inverse=True)
    member = np.zeros((count, len(kinds)))
    member[np.arange(count), place.ravel()] = 1
    dimension = len(clients.minimizer)
    away = clients.optima - clients.minimizer
    product = eta**2 * weights.product
    # Sums over the clients of a group, left and right, with c_k where it stands: oc and cc.
    right = np.stack([(product * away[:, i]) @ member for i in range(dimension)])
    left = away.T[:, :, None] * member
    return Groups(
        curvature=kinds[:, 1 : 1 + dimension],
        noise=kinds[:, 1 + dimension :],
        steps=kinds[:, :1],
        epochs=plan.epochs,
        o=eta * weights.mean @ member,
        c=eta * member.T @ (weights.mean[:, None] * away),
        oo=member.T @ product @ member,
        oc=member.T @ right,
        cc=np.swapaxes(left, 1, 2) @ right,
        squares=np.diag(product) @ member,
    )
