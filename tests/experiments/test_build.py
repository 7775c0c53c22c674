"""Settings -> an experiment: what is filled in, what reaches the parts, what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.algorithms import ALGORITHMS, SOLVERS
from fedmom.algorithms.base import as_server
from fedmom.core.registry import options_of
from fedmom.experiments import build, defaults, settings
from tests.experiments.small import prepared as small


def prepared(**values):
    return build.prepare(settings.parse({"data": "synthetic", **values}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        # The algorithm has no such thing.
        ({"momentum": 0.5, "algorithm": "fedavg"}, "fedavg has no momentum; leave momentum 0.5"),
        (
            {"local-steps": 5, "algorithm": "fedsgd"},
            "fedsgd brings its own local work: leave local-",
        ),
        (
            {"local-epochs": 1, "algorithm": "fedsgd"},
            "fedsgd brings its own local work: leave local-epochs 1",
        ),
        ({"clients-per-round": 31}, "clients-per-round 31 is more than the 30 clients"),
        # Options.
        ({"algorithm": "fedadam:taw=1"}, "fedadam has no option 'taw'. Its options: beta2, tau"),
        ({"algorithm": "fedadam:tau=x"}, "fedadam: tau='x' is not of type float"),
        ({"algorithm": "fedavg:tau=1"}, "fedavg has no option 'tau'. Its options: none"),
        ({"solver": "adam:beta=1"}, "adam has no option 'beta'. Its options: b1, b2, eps"),
        ({"solver": "sgd:0.9"}, "'0.9' in 'sgd:0.9' is not an option"),
        ({"pace": "buffered"}, "buffered needs in_flight. Write buffered:in_flight=..."),
        (
            {"pace": "buffered:in_flight=1"},
            "in_flight=1 must be at least 2, the clients of a round",
        ),
        ({"pace": "over_selected:extra=-1"}, "extra=-1.0 must be"),
        ({"pace": "synchronous:timeout=0"}, "timeout=0.0 must be a number of seconds"),
        ({"sampler": "poisson:rate=1"}, "poisson has no option 'rate'"),
        ({"runtime": "local:threads=2"}, "local has no option 'threads'. Its options: workers"),
        ({"runtime": "local:workers=x"}, "local: workers='x' is not of type"),
        # Rules and stages.
        ({"aggregate": "mode"}, "no rule 'mode'"),
        ({"aggregate": "clipp:norm=1+mean"}, "no stage 'clipp'. Did you mean 'clip'"),
        ({"aggregate": "clip+mean"}, "clip needs norm"),
        ({"aggregate": "clip:norm=0+mean"}, "norm 0.0 must be a number greater than 0"),
        ({"aggregate": "mean+clip:norm=1"}, "mean is a rule, and a rule comes last"),
        (
            {"aggregate": "trimmed_mean:share=0.5", "weighting": "uniform"},
            r"share=0.5 is not in \[0, 0.5\)",
        ),
        # Together.
        ({"sampler": "weighted"}, "population weights would count samples twice"),
        (
            {"sampler": "weighted", "weighting": "cohort"},
            "cohort weights would count samples twice. Add --weighting uniform",
        ),
        ({"aggregate": "trimmed_mean"}, "cannot use population weights.*Use --weighting uniform"),
        (
            {"aggregate": "trimmed_mean", "weighting": "uniform", "diagnostics": True},
            "aggregate trimmed_mean and pace synchronous is not such a case. Leave --diagnostics",
        ),
        (
            {"aggregate": "clip:norm=1+mean", "diagnostics": True},
            r"aggregate clip:norm=1\+mean and pace synchronous is not such a case",
        ),
        (
            {"pace": "buffered:in_flight=4", "diagnostics": True},
            "pace buffered:in_flight=4 is not such a case. Leave --diagnostics out",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_a_sentence(values, says):
    with pytest.raises(fedmom.FedMomError, match=says) as caught:
        prepared(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"sampler": "weighted", "weighting": "uniform"},
        {"aggregate": "trimmed_mean:share=0.2", "weighting": "uniform"},
        {"diagnostics": True, "pace": "over_selected", "weighting": "cohort"},
    ],
    ids=str,
)
def test_what_fits_is_built(values):
    assert prepared(**values).config.weighting == values.get("weighting", "population")


@pytest.mark.parametrize(
    ("values", "eta"),
    [
        ({"weighting": "population", "clients-per-round": 4}, 30 / 4),
        ({"weighting": "cohort"}, 1.0),
        ({"weighting": "uniform"}, 1.0),
        ({"algorithm": "fedadam"}, 0.01),
        ({"server-lr": 3}, 3.0),
    ],
)
def test_the_server_step_is_k_over_m_for_population_weights(values, eta):
    assert prepared(**values).config.server_lr == eta


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"server-lr": 15}, False),
        ({"server-lr": 15.01}, True),
        ({"server-lr": 0.9}, True),
        ({"server-lr": 0.9, "weighting": "cohort"}, False),
        ({"server-lr": "linear:start=15,end=0.5,rounds=100"}, True),
        ({"server-lr": "linear:start=15,end=1,rounds=100"}, False),
        ({"algorithm": "fedadam"}, False),
    ],
)
def test_a_server_step_outside_the_papers_range_is_told(values, told):
    notes = prepared(**values).notes
    assert bool(notes) == told
    assert all("[1, K/M] = [1, 15]" in note for note in notes)


def test_everything_left_open_is_filled_in():
    config = prepared().config
    assert (config.model, config.momentum, config.local_steps) == ("logreg", 0.9, 10)
    assert prepared(momentum=0).config.momentum == 0
    assert prepared(algorithm="fedadagrad").config.momentum == 0
    assert prepared(algorithm="fedavg").config.momentum is None
    assert prepared(algorithm="fedsgd").config.batch_size == "all"
    assert prepared(**{"local-epochs": 2}).config.local_steps is None
    assert prepared(diagnostics=True).config.diagnostics_every >= 15


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"algorithm": "fedsgd", "lr": "cosine:start=1,rounds=50"},
        {
            "local-epochs": 0.5,
            "batches": "random",
            "solver": "adamw:weight_decay=0.1",
            "prox": 0.1,
            "tensorboard": True,
        },
        {
            "local-steps": "linear:start=20,end=5,rounds=10",
            "batch-size": "all",
            "eval-samples": "all",
        },
        {
            "algorithm": "fedadam:tau=0.1,beta2=0.5",
            "aggregate": "clip:norm=0.5+mean",
            "weighting": "uniform",
            "sampler": "poisson",
            "pace": "over_selected:extra=0.5,timeout=10",
            "runtime": "local:workers=2",
            "bad-replies": "skip",
            "average": 0.9,
        },
        {"diagnostics": True},
    ],
    ids=str,
)
def test_the_written_file_gives_the_same_settings_back(tmp_path, values):
    config = prepared(**values).config
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert settings.parse(settings.read(path)) == config
    assert build.prepare(config).config == config  # nothing left to fill in


def all_options(table, values):
    """Every option in a table, with a value that is not its default."""
    found = []
    for name in table:
        for option, parameter in options_of(table[name]).items():
            assert values[option] != parameter.default
            found.append((f"{name}:{option}={values[option]}", name))
    return found


def last_step(optimizer, params):
    """The third step, on changing gradients: every part of an optimizer's state counts by then."""
    state = optimizer.init(params)
    for g in (1.0, -0.7, 2.0):
        gradient = jax.tree.map(lambda p: g * (p + 0.3), params)  # noqa: B023
        updates, state = optimizer.update(gradient, state, params)
    return np.asarray(updates)


SERVERS = {name: ALGORITHMS[name] for name in ALGORITHMS if name != "diloco"}


@pytest.mark.parametrize(
    ("spec", "name"), all_options(SERVERS, {"tau": 0.5, "beta2": 0.6}), ids=str
)
def test_every_option_of_an_algorithm_reaches_its_server(spec, name):
    params = jnp.array([0.1, -0.7])
    aggregate = jnp.array([0.2, 0.5])

    def steps(algorithm):
        server = as_server(small(algorithm=algorithm).workload.algorithm.server)
        state, w = server.init(params), params
        for _ in range(2):
            w, state, _ = server.step(aggregate, state, w)
        return np.asarray(w)

    assert np.abs(steps(spec) - steps(name)).max() > 1e-4
    option, value = spec.partition(":")[2].split("=")
    own = getattr(fedmom.servers, name)(0.01, **{option: float(value)})
    server, w = as_server(own), params
    state = server.init(params)
    for _ in range(2):
        w, state, _ = server.step(aggregate, state, w)
    np.testing.assert_allclose(steps(spec), w, rtol=1e-6)


@pytest.mark.parametrize("option", ["warmup=7", "b1=0.5", "b2=0.5", "weight_decay=0.5"])
def test_every_option_of_diloco_reaches_the_clients(option):
    params = jnp.array([0.1, -0.7])
    plain, other = (small(algorithm=f"diloco{more}").work for more in ("", f":{option}"))
    assert np.abs(np.subtract(*(last_step(w.solver(0.1), params) for w in (plain, other)))).max()
    work = small(algorithm="diloco:steps=7,batch_size=6,accumulate=2").work
    assert (work.count(0, 100), work.batch_size, work.accumulate) == (7, 6, 2)


SOLVER_VALUES = {
    "momentum": 0.5,
    "nesterov": True,
    "decay": 0.5,
    "eps": 0.1,
    "b1": 0.5,
    "b2": 0.5,
    "weight_decay": 0.5,
    "dampening": 0.5,
    "eps_in_sqrt": False,
    "centered": True,
}


@pytest.mark.parametrize(("spec", "name"), all_options(SOLVERS, SOLVER_VALUES), ids=str)
def test_every_option_of_a_solver_reaches_the_clients(spec, name):
    option = spec.partition(":")[2]
    if option.partition("=")[0] in ("nesterov", "dampening"):  # of SGD's momentum
        spec, name = f"sgd:momentum=0.9,{option}", "sgd:momentum=0.9"
    if option.startswith("eps_in_sqrt"):  # of a number that is not tiny
        spec, name = f"rmsprop:eps=0.1,{option}", "rmsprop:eps=0.1"
    params = jnp.array([0.1, -0.7])
    one, other = (last_step(small(solver=s).work.solver(0.1), params) for s in (spec, name))
    assert np.abs(one - other).max() > 1e-4


def test_equal_settings_share_their_parts():
    """So that runs of one process share compiled programs."""
    one, other = (small(algorithm="fedadam:tau=0.1", solver="adam:b1=0.5") for _ in range(2))
    assert one.workload.method == other.workload.method
    assert one.workload.algorithm.server is other.workload.algorithm.server
    assert one.work == other.work
    assert one.work.solver is other.work.solver


def test_what_several_algorithms_share_is_cut_to_what_each_has():
    shared = {"momentum": 0.5, "local-steps": 3, "lr": 0.1}
    assert defaults.fitting({**shared, "algorithm": "fedsgd"}) == {"lr": 0.1, "algorithm": "fedsgd"}
    assert "momentum" not in defaults.fitting({**shared, "algorithm": "fedavg"})
    assert defaults.fitting({**shared, "algorithm": "fedadam:tau=1"})["momentum"] == 0.5
    assert defaults.fitting(shared) == shared  # fedmom, the default


@pytest.mark.parametrize("rule", ["trimmed_mean", "median"])
def test_rules_of_coordinates_go_with_stale_replies(rule):
    """Which count less. Earlier, this was refused."""
    experiment = prepared(aggregate=rule, weighting="uniform", pace="buffered:in_flight=4")
    assert (experiment.workload.method.rule.name, experiment.pace.keeps_late) == (rule, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("local-steps", 5),
        ("local-epochs", 0.5),
        ("batch-size", 5),
        ("batch-size", 10),  # the default of the others, but asked for
        ("batches", "shuffled"),
        ("solver", "adam"),
        ("prox", 0.1),
    ],
)
def test_fedsgd_refuses_what_it_would_ignore(name, value):
    values = {"data": "synthetic:clients=4", "algorithm": "fedsgd", name: value}
    with pytest.raises(
        fedmom.FedMomError, match=f"fedsgd brings its own local work: leave {name} {value} out"
    ):
        build.prepare(settings.parse(values))
    assert name not in defaults.fitting(values)  # where settings are shared
    complete = build.prepare(settings.parse(defaults.fitting(values))).config
    assert build.prepare(settings.parse(complete.model_dump(by_alias=True))).config == complete
