"""Exact expectations on quadratic clients: against simulation, closed forms and the engine."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.theory.expected_loss import Recursion, expected_excess
from fedmom.theory.quadratic import Plan, QuadraticClients, random_clients

RUNS, ROUNDS, LR = 20_000, 8, 0.2


def six_clients():
    rng = np.random.default_rng(0)
    return QuadraticClients(
        sizes=[1, 2, 5, 3, 9, 4],
        curvature=rng.uniform(0.2, 1, (6, 2)),
        optima=rng.normal(size=(6, 2)),
        noise=rng.uniform(0.1, 0.5, (6, 2)),
        start=[3.0, -2.0],
    )


def cohorts(clients, plan, rng):
    """Who is drawn in a round of every run, and what they count."""
    sizes, m = clients.sizes, plan.per_round
    if plan.sampler == "weighted":
        n = sizes.astype(int)
        some = np.array([fedmom.weighted(1, t, m, n) for t in rng.integers(0, 2**40, 400)])
        drawn = some[rng.integers(0, len(some), RUNS)]
    else:
        drawn = np.argsort(rng.random((RUNS, len(sizes))), axis=1)[:, :m]
    counts = sizes[drawn]
    shares = {
        "population": counts / sizes.sum(),
        "cohort": counts / counts.sum(axis=1, keepdims=True),
        "uniform": np.full(counts.shape, 1 / m),
    }
    return drawn, shares[plan.weighting]


def simulated(clients, plan, beta):
    """Mean and standard error of f(w_t) - f(w*), with the definitions of the package's parts."""
    rng = np.random.default_rng(1)
    steps = np.broadcast_to(plan.steps, len(clients.sizes))
    w = np.tile(clients.start, (RUNS, 1))
    v, mean, found = w, w, []  # the paper's v, not the velocity
    for t in range(ROUNDS):
        lr = LR if plan.decay == "constant" else LR * (1 + np.cos(np.pi * t / ROUNDS)) / 2
        drawn, shares = cohorts(clients, plan, rng)
        local = np.repeat(w[:, None], plan.per_round, axis=1)
        for h in range(steps.max()):
            noise = np.sqrt(clients.noise[drawn]) * rng.normal(size=local.shape)
            gradient = clients.curvature[drawn] * (local - clients.optima[drawn]) + noise
            local = local - lr * gradient * (steps[drawn] > h)[..., None]
        g = np.sum(shares[..., None] * (w[:, None] - local), axis=1)
        v_next = w - plan.eta(len(steps)) * g
        w, v = v_next + beta * (v_next - v), v_next
        newest = 1 if plan.average is None else (1 - plan.average) / (1 - plan.average ** (t + 1))
        mean = mean + newest * (w - mean)
        losses = (mean - clients.minimizer) ** 2 @ clients.mean_curvature / 2
        found.append((losses.mean(), losses.std() / np.sqrt(RUNS)))
    return np.array(found).T


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize(
    "options",
    [
        {"weighting": "population"},
        {"weighting": "cohort"},
        {"weighting": "uniform"},
        {"weighting": "population", "decay": "cosine"},
        {"weighting": "cohort", "average": 0.8},
        {"weighting": "cohort", "decay": "cosine", "average": 0.8},
        {"weighting": "population", "server_lr": 1.5},
    ],
    ids=str,
)
def test_the_expectation_is_that_of_simulated_runs(options, beta):
    plan = Plan(per_round=2, steps=np.array([1, 2, 3, 1, 2, 4]), **options)
    mean, error = simulated(six_clients(), plan, beta)
    exact = expected_excess(six_clients(), plan, LR, ROUNDS, momentum=beta)[1:, 0]
    assert np.all(error < 0.01 * mean)  # so that the test can fail
    assert np.all(np.abs(exact - mean) < 4 * error)


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_clients_drawn_by_size_are_simulated_too(beta):
    """To 5 %: pairs of six clients are approximate, and 400 of the sampler's cohorts few."""
    plan = Plan(per_round=2, steps=2, weighting="uniform", sampler="weighted")
    mean, _ = simulated(six_clients(), plan, beta)
    exact = expected_excess(six_clients(), plan, LR, ROUNDS, momentum=beta)[1:, 0]
    np.testing.assert_allclose(exact, mean, rtol=0.05)


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_without_chance_it_is_the_iteration_itself(beta, average):
    """M = K and no noise: to twelve digits, by both ways of computing it."""
    clients = six_clients()
    still = QuadraticClients(clients.sizes, clients.curvature, clients.optima, [0.0], clients.start)
    plan = Plan(per_round=6, steps=3, average=average)
    a = 1 - (1 - 0.3 * still.curvature) ** 3
    w, d, mean = still.start, np.zeros(2), still.start
    for t in range(1, 101):
        g = still.weights @ (a * (w - still.optima))
        d = beta * d - g
        w = w + beta * d - g
        mean = w if average is None else mean + (1 - average) / (1 - average**t) * (w - mean)
    recursion = Recursion(still, plan)
    expected = still.excess(mean)
    curve = recursion.curve(0.3, 100, momentum=beta)[-1, 0]
    assert curve == pytest.approx(expected, abs=1e-12)
    assert recursion.after(0.3, 100, momentum=beta)[0] == pytest.approx(expected, abs=1e-12)


def test_one_step_of_equal_clients_has_a_closed_form():
    """H = 1, M = 1, one curvature: E w² is a geometric series."""
    h, noise, lr, spread, rounds = 0.5, 0.2, 0.3, 2.0, 40
    clients = QuadraticClients([1, 1], [h], [[-spread], [spread]], [noise], [5.0])
    q = (1 - lr * h) ** 2
    each = lr**2 * (h**2 * spread**2 + noise)
    square = 25 * q**rounds + each * (1 - q**rounds) / (1 - q)
    found = expected_excess(clients, Plan(per_round=1), lr, rounds)[-1, 0]
    assert found == pytest.approx(h * square / 2, rel=1e-12)


@pytest.mark.parametrize("decay", ["constant", "cosine"])
def test_the_end_of_the_curve_is_what_squaring_gives(decay):
    clients = random_clients(clients=9, dimension=4)
    lrs, counts = np.array([0.01, 0.1, 0.3]), np.array([1, 13, 200])
    recursion = Recursion(clients, Plan(per_round=3, steps=2, decay=decay, average=0.5))
    found = recursion.after(lrs, counts, momentum=[0, 0.5, 0.9])
    for lr, count, beta, loss in zip(lrs, counts, (0, 0.5, 0.9), found, strict=True):
        assert loss == pytest.approx(recursion.curve(lr, count, momentum=beta)[-1, 0], rel=1e-9)


def test_what_diverges_is_infinite():
    clients = random_clients(clients=5, dimension=3)
    recursion = Recursion(clients, Plan(per_round=2, steps=5))
    assert recursion.curve(50.0, 500)[-1, 0] == np.inf
    assert recursion.after(50.0, 5000)[0] == np.inf


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: expected_excess(c, Plan(1), 0.0, 5), "lr is 0"),
        (lambda c: expected_excess(c, Plan(1), 0.1, 5, momentum=1.0), "momentum contains 1"),
        (lambda _: Plan(1, steps=0), "steps .H. must be at least 1"),
        (lambda _: Plan(1, decay="linear"), "one of constant, cosine"),
        (lambda _: Plan(1, average=1.0), "between 0 and 1"),
        (lambda _: Plan(1, steps=3, epochs=2), "do not divide"),
        (
            lambda _: QuadraticClients([1, 0], [1.0], [[0.0], [0.0]], [0.0], [1.0]),
            "sizes contains 0",
        ),
        (lambda _: QuadraticClients([1], [0.0], [[0.0]], [0.0], [1.0]), "curvature contains 0"),
        (lambda _: QuadraticClients([1], [1.0], [[0.0]], [-1.0], [1.0]), "noise contains -1"),
        (lambda _: QuadraticClients([1], [1.0, 2.0], [[0.0]], [0.0], [1.0]), r"shape \(2,\)"),
    ],
)
def test_what_makes_no_sense_is_refused(call, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        call(six_clients())


# The package's own engine: samples are quadratics whose minima are the client's, plus or minus.


def engine_losses(clients, offsets, per_client, *, seeds, rounds, beta, work, weighting):
    """Losses after the last round of runs of fedmom.train."""
    rows = [
        [*clients.curvature[k], *(clients.optima[k] + (-1) ** i * offsets / clients.curvature[k])]
        for k in range(len(per_client))
        for i in range(per_client[k])
    ]
    x = np.array(rows, np.float32)
    data = fedmom.from_arrays(x, np.zeros(len(x), int), np.repeat(np.arange(3), per_client))

    def losses(w, x, _key):
        return jnp.sum(x[:, :2] * (w - x[:, 2:]) ** 2, axis=1) / 2

    start = jnp.asarray(clients.start, jnp.float32)
    model = fedmom.Model(lambda _key: start, losses, lambda out, _y: out)
    eta = 3 / 2 if weighting == "population" else 1.0
    server, rule = fedmom.servers.fedmom(eta, beta), fedmom.mean(weighting)
    algorithm = fedmom.Algorithm(server, work, rule=rule)
    pace, found = fedmom.synchronous(2), []
    for seed in range(seeds):
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm, seed), workers=1)
        *_, (last, _record) = fedmom.train(runtime, pace=pace, rounds=rounds)
        found.append(clients.excess(np.asarray(last.params, float)))
    return np.array(found)


@pytest.mark.parametrize(
    ("weighting", "beta", "shuffled"), [("population", 0.6, True), ("cohort", 0.5, False)]
)
def test_the_engine_has_these_expectations(weighting, beta, shuffled):
    per_client, offsets = np.array([2, 4, 6]), np.array([1.0, 0.5])
    rng = np.random.default_rng(3)
    # The variance of a sample's gradient; of batches that are drawn without replacement, S².
    factor = (per_client / (per_client - 1) if shuffled else np.ones(3))[:, None]
    clients = QuadraticClients(
        per_client,
        rng.uniform(0.3, 1, (3, 2)),
        rng.normal(size=(3, 2)),
        factor * offsets**2,
        [2, 1],
    )
    steps = {"epochs": 1} if shuffled else {"steps": 3}
    work = fedmom.LocalWork(lr=0.3, batch_size=1, **steps)
    losses = engine_losses(
        clients, offsets, per_client, seeds=100, rounds=6, beta=beta, work=work, weighting=weighting
    )
    plan = Plan(2, per_client if shuffled else 3, weighting, epochs=1 if shuffled else None)
    exact = expected_excess(clients, plan, 0.3, 6, momentum=beta)[-1, 0]
    error = losses.std() / np.sqrt(len(losses))
    assert error < 0.15 * exact
    assert abs(losses.mean() - exact) < 4 * error
