"""Problems whose constants are known exactly, and their simulation, to test the theorems.

A problem gives the gradients of its clients, f and ∇f, and the constants of the assumptions.
Noise is Gaussian and added to a client's gradient, so σ² is its variance, everywhere. The
package's own engine gives the same as ``simulate`` (tests/theory/test_problems.py), which carries
hundreds of seeds through a round together, as an estimate of an expectation needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.theory.constants import Array, Constants, Number, Setting

Draws = Callable[[int], NDArray[np.int64]]  # round -> the clients of every run, (runs, M)


@dataclass(frozen=True, eq=False)
class Quadratics:
    """f_k(w) = ½ wᵀA_k w - a_kᵀw, with Σ p_k A_k positive definite.

    ``matrices`` has shape (K, d, d), symmetric; ``slopes`` (the a_k) has shape (K, d).
    """

    weights: Array
    matrices: Array
    slopes: Array
    variance: float = 0.0

    def client_gradients(self, w: Array, clients: NDArray[np.int64]) -> Array:
        """∇f_k(w) = A_k w - a_k."""
        product: Array = self.matrices[clients] @ w[..., None]
        return product[..., 0] - self.slopes[clients]

    def gradient(self, w: Array) -> Array:
        """∇f(w) = Ā(w - w*)."""
        return (w - self.minimizer) @ self._mean

    def value(self, w: Array) -> Array:
        """f(w) - f_inf = ½ (w - w*)ᵀĀ(w - w*)."""
        away = w - self.minimizer
        return np.asarray(np.sum(away * (away @ self._mean), axis=-1) / 2)

    @property
    def minimizer(self) -> Array:
        """w*, where Σ p_k ∇f_k is 0."""
        return np.asarray(np.linalg.solve(self._mean, self.weights @ self.slopes), float)

    @property
    def least_similarity(self) -> float:
        """The limit that B² cannot go below: the largest eigenvalue of Ā⁻¹ Σ p_k A_k² Ā⁻¹."""
        inverse = np.linalg.inv(self._mean)
        return float(np.linalg.eigvalsh(inverse @ self._mean_square @ inverse)[-1])

    def dissimilarity(self, similarity: float) -> float:
        """Return the least G² for this B².

        With y = w - w* and g_k = ∇f_k(w*): Σ p_k |A_k y + g_k|² - B²|Āy|² is the quadratic
        s + 2rᵀy - yᵀ(B²Ā² - Q)y with Q = Σ p_k A_k², r = Σ p_k A_k g_k, s = Σ p_k |g_k|². Its
        largest value is s + rᵀ(B²Ā² - Q)⁻¹r. Where all A_k are equal, r = 0 and Q = Ā², so
        that B² = 1 and G² = s.
        """
        at_minimum = self.matrices @ self.minimizer - self.slopes
        spread = float(self.weights @ np.sum(at_minimum**2, axis=-1))
        tilt = np.einsum("k,kij,kj->i", self.weights, self.matrices, at_minimum)
        if np.allclose(tilt, 0, atol=1e-12) and similarity >= self.least_similarity - 1e-9:
            return spread
        if similarity <= self.least_similarity:
            raise FedMomError(
                f"B² {similarity:g} is too small for these clients: it must be more than"
                f" {self.least_similarity:g}."
            )
        room = similarity * self._mean @ self._mean - self._mean_square
        return spread + float(tilt @ np.linalg.solve(room, tilt))

    def constants(self, start: Array, similarity: float | None = None) -> Constants:
        """Return the constants for a start and a B²; twice the least B² if none is given."""
        norms = np.linalg.norm(self.matrices, ord=2, axis=(-2, -1))
        if similarity is None:
            equal = bool(np.allclose(self.matrices, self.matrices[0]))
            similarity = 1.0 if equal else 2 * self.least_similarity
        return Constants(
            smoothness=float(norms.max()),
            variance=self.variance,
            gap=float(self.value(start)),
            dissimilarity=self.dissimilarity(similarity),
            similarity=similarity,
        )

    @property
    def _mean(self) -> Array:
        return np.einsum("k,kij->ij", self.weights, self.matrices)

    @property
    def _mean_square(self) -> Array:
        return np.einsum("k,kij,kjl->il", self.weights, self.matrices, self.matrices)


def random_quadratics(
    rng: np.random.Generator,
    clients: int,
    dimension: int,
    *,
    variance: float = 0.0,
    spread: float = 1.0,
    same_curvature: bool = False,
) -> Quadratics:
    """Draw clients with eigenvalues in [0.1, 1], minima ``spread`` apart, and unequal weights."""
    shape = (1 if same_curvature else clients, dimension, dimension)
    turns, _ = np.linalg.qr(rng.normal(size=shape))
    values = rng.uniform(0.1, 1, size=shape[:2])
    matrices = np.einsum("kij,kj,klj->kil", turns, values, turns)
    matrices = np.broadcast_to(matrices, (clients, dimension, dimension)).copy()
    minima = spread * rng.normal(size=(clients, dimension))
    slopes = np.einsum("kij,kj->ki", matrices, minima)
    weights = rng.uniform(0.5, 2, size=clients)
    return Quadratics(weights / weights.sum(), matrices, slopes, variance)


@dataclass(frozen=True, eq=False)
class Waves:
    """A non-convex problem: f_k(w) = Σ_i [w_i²/(1 + w_i²) + c_ki sin w_i] with Σ p_k c_k = 0.

    The waves cancel in f(w) = Σ_i w_i²/(1 + w_i²), so that f_inf = 0, at w = 0, and f is flat
    far away. The second derivative of x²/(1 + x²) lies in [-1/2, 2], so L = 2 + max |c_ki|.
    Σ p_k |∇f_k - ∇f|² = Σ_i cos²(w_i) Σ_k p_k c_ki², at most G² = Σ p_k |c_k|², with B² = 1.
    """

    weights: Array
    heights: Array  # the c_k, shape (K, d)
    variance: float = 0.0

    def __post_init__(self) -> None:
        """Refuse waves that do not cancel: the constants would be wrong."""
        if not np.allclose(self.weights @ self.heights, 0, atol=1e-9):
            raise FedMomError("The waves' heights do not cancel: Σ p_k c_k must be 0.")

    def client_gradients(self, w: Array, clients: NDArray[np.int64]) -> Array:
        """∇f_k(w), number by number."""
        return self.gradient(w) + self.heights[clients] * np.cos(w)

    def gradient(self, w: Array) -> Array:
        """∇f(w) = 2w/(1 + w²)²."""
        return np.asarray(2 * w / (1 + w**2) ** 2)

    def value(self, w: Array) -> Array:
        """f(w), which is also f(w) - f_inf."""
        return np.asarray(np.sum(w**2 / (1 + w**2), axis=-1))

    def constants(self, start: Array) -> Constants:
        """Return the constants for a start."""
        return Constants(
            smoothness=2 + float(np.abs(self.heights).max()),
            variance=self.variance,
            gap=float(self.value(start)),
            dissimilarity=float(self.weights @ np.sum(self.heights**2, axis=-1)),
        )


Problem = Quadratics | Waves


def random_waves(
    rng: np.random.Generator, clients: int, dimension: int, *, variance: float = 0.0
) -> Waves:
    """Draw heights that cancel, and unequal weights."""
    weights = rng.uniform(0.5, 2, size=clients)
    weights /= weights.sum()
    heights = rng.normal(size=(clients, dimension))
    return Waves(weights, heights - weights @ heights, variance)


def simulate(
    problem: Problem,
    setting: Setting,
    lr: Number,
    rounds: int,
    start: Array,
    *,
    runs: int = 1,
    seed: int = 0,
    draw: Draws | None = None,
) -> Array:
    """Run FedAvg or FedMom in NumPy; return w_0 ... w_T of every run, shape (T + 1, runs, d).

    ``lr`` is γ, or γ_0, γ_1, ..., one for each round.
    """
    steps = np.broadcast_to(np.asarray(lr, float), (rounds,))
    rng = np.random.default_rng(seed)
    draw = draw or (lambda _round: _cohorts(rng, runs, setting))
    w = np.tile(np.asarray(start, float), (runs, 1))
    velocity = np.zeros_like(w)
    models = [w]
    for round_, step_size in enumerate(steps.tolist()):
        clients = draw(round_)
        moved = w[:, None] - _local(problem, setting, step_size, w, clients, rng)
        step = setting.server_lr * np.einsum("rm,rmd->rd", problem.weights[clients], moved)
        velocity = setting.momentum * velocity - step
        w = w + setting.momentum * velocity - step
        models.append(w)
    return np.stack(models)


def gradient_squares(problem: Problem, models: Array) -> Array:
    """Return |∇f(w)|² of every model."""
    return np.asarray(np.sum(problem.gradient(models) ** 2, axis=-1))


def _local(
    problem: Problem,
    setting: Setting,
    lr: float,
    w: Array,
    clients: NDArray[np.int64],
    rng: np.random.Generator,
) -> Array:
    """Return the models of a round's clients after H noisy steps, shape (runs, M, d)."""
    local = np.repeat(w[:, None], clients.shape[1], axis=1)
    deviation = np.sqrt(problem.variance / w.shape[-1])
    for _ in range(setting.local_steps):
        gradient = problem.client_gradients(local, clients)
        if deviation:
            gradient = gradient + deviation * rng.normal(size=local.shape)
        local = local - lr * gradient
    return local


def _cohorts(rng: np.random.Generator, runs: int, setting: Setting) -> NDArray[np.int64]:
    """Draw M of K for every run, uniformly without replacement."""
    order = np.argsort(rng.random((runs, setting.clients)), axis=1)
    return order[:, : setting.per_round]
