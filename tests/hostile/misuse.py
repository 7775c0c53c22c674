"""Wrong values for every parameter of every public function, made from the signatures.

``calls`` has a right call of everything public. A case is such a call with one argument replaced.
It may succeed, for some values are right somewhere, or end in a ``FedMomError`` that names the
parameter or shows the value.
"""

import datetime
import functools
import inspect
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from PIL import Image

import fedmom
from fedmom import theory
from fedmom.experiments.settings import RunConfig

NUMBERS = itertools.count()  # for folders that must be new
SECONDS = 60  # that a call may take, with everything to compile
KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# How a message may call a parameter, next to its own name and that of its option.
ALSO = {
    "algorithms": ("algorithm",),
    "client_ids": ("client id",),
    "data": ("dataset",),
    "model": ("net",),
    **dict.fromkeys(
        ("lr", "server_lr", "local_steps", "local_epochs"), ("schedule", "learning_rate")
    ),
    "lrs": ("lr",),
    "sizes": ("clients",),
    "size": ("clients-per-round", "clients"),
    "given": ("setting",),
    "path": ("file", "folder"),
    "learning_rate": ("lr",),
    "spec": ("model", "dataset", "--data"),
    "metrics": ("metric",),
    "users": ("clients",),
    "runs": ("run",),
    "x": ("row",),
}


class WithoutWords:
    """Whose text cannot be had."""

    def __repr__(self) -> str:
        raise ValueError("no words")


def _numbers() -> Iterator[int]:
    yield from (1, 2, 3)


@functools.cache
def data() -> fedmom.FederatedData:
    return fedmom.load_data("synthetic:clients=4")


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "10**30": lambda: 10**30,
    "1.5": lambda: 1.5,
    "1e300": lambda: 1e300,
    "nan": lambda: float("nan"),
    "-inf": lambda: float("-inf"),
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "no such thing",
    "text of a number": lambda: "2",
    "text with NUL": lambda: "a\0b",
    "long text": lambda: "x" * 100_000,
    "bytes": lambda: b"ab",
    "list": lambda: [1, 2],
    "list of None": lambda: [None],
    "mixed list": lambda: ["a", 1, None],
    "deep list": lambda: functools.reduce(lambda inner, _: [inner], range(200), []),
    "empty list": list,
    "tuple": lambda: (1, "a"),
    "dict": lambda: {"a": 1},
    "dict of numbers": lambda: {1: None},
    "empty dict": dict,
    "set": lambda: {1, 2},
    "generator": _numbers,
    "range": lambda: range(3),
    "object": object,
    "object without words": WithoutWords,
    "class": lambda: WithoutWords,
    "class of Python": lambda: dict,
    "module": lambda: np,
    "exception": lambda: ValueError("x"),
    "date": lambda: datetime.date(2020, 1, 1),
    "path": lambda: Path("nowhere") / "x",
    "function of nothing": lambda: lambda: None,
    "function of five": lambda: _five,
    "function of anything": lambda: lambda *_, **__: None,
    "vector": lambda: np.zeros(3),
    "matrix": lambda: np.zeros((2, 2)),
    "no numbers": lambda: np.zeros((0, 3)),
    "vector of NaN": lambda: np.full(3, np.nan),
    "complex vector": lambda: np.ones(3, complex),
    "texts": lambda: np.array(["a", "b"]),
    "objects": lambda: np.array([None, {}], object),
    "dates": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    "records": lambda: np.zeros(2, [("a", "i4")]),
    "NumPy's bool": lambda: np.bool_(True),
    "NumPy's NaN": lambda: np.float32("nan"),
    "JAX's vector": lambda: jnp.zeros(3),
    "a key": lambda: jax.random.key(0),
    "DataFrame": lambda: pd.DataFrame({"a": [1, 2]}),
    "dataset": data,
    "optimizer": lambda: optax.sgd(0.1),
}


class Call(NamedTuple):
    """A right call: the function, and its arguments by name."""

    function: Callable[..., Any]
    arguments: dict[str, Any]


@functools.cache
def _table() -> pd.DataFrame:
    rows = np.random.default_rng(0).normal(size=(12, 2))
    return pd.DataFrame(rows, columns=["a", "b"]).assign(y=[0, 1] * 6, who=["p", "q", "r"] * 4)


@functools.cache
def _hugging_face() -> Any:
    import datasets

    return datasets.Dataset.from_pandas(_table())


@functools.cache
def _workload() -> fedmom.Workload:
    model = fedmom.build_model("logreg", data().features)
    work = fedmom.LocalWork(lr=0.1, steps=1)
    return fedmom.Workload(data(), model, fedmom.Algorithm(fedmom.servers.fedavg(), work))


@functools.cache
def _state() -> fedmom.State:
    return fedmom.start(_workload())


def _five(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:  # noqa: ARG001
    return None


def _net() -> tuple[Any, Any]:
    return lambda _key: jnp.zeros((60, 10)), lambda w, x, _key: x @ w


def _trained(runtime: Any, **how: Any) -> Any:
    """Train, and take what comes: ``fedmom.train`` is a generator."""
    return list(fedmom.train(runtime, **how))


_trained.__signature__ = inspect.signature(fedmom.train)  # type: ignore[attr-defined]


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Fail what takes longer."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def prepare(folder: Path) -> None:
    """Write the files that the calls read."""
    _table().to_csv(folder / "t.csv", index=False)
    _table().to_parquet(folder / "t.parquet", index=False)
    (folder / "there.csv").write_text("client,start,end\n0,0,9\n", encoding="utf-8")
    (folder / "fast.csv").write_text("samples_per_second,down,up\n9,8,2\n", encoding="utf-8")
    for name in ("a", "b"):
        (folder / "pictures" / name / "0").mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / "pictures" / name / "0" / "x.png")


def calls(folder: Path) -> dict[str, Callable[[], Call]]:
    """Return a right call of everything public, by name; each is made when it is needed."""
    frame = _table()
    small = {"data": "synthetic:clients=4", "rounds": 1, "clients_per_round": 2}
    small |= {"out": str(folder / "out"), "overwrite": True, "progress": False}

    @functools.cache
    def run() -> fedmom.Run:
        return fedmom.run(**small | {"out": str(folder / "kept")})

    @functools.cache
    def exported() -> Path:
        return run().export(folder / "weights")

    @functools.cache
    def texts() -> fedmom.Run:
        data = fedmom.from_texts(["abc" * 9, "cba" * 9], client_ids=[0, 1], window=3)
        return fedmom.run(
            **small | {"data": data, "out": str(folder / "texts"), "model": "char_lstm:hidden=4"}
        )

    @functools.cache
    def runs() -> fedmom.Runs:
        return fedmom.compare(["fedavg"], **small | {"out": str(folder / "several")})

    def method(owner: Callable[[], Any], called: str, /, **given: Any) -> Callable[[], Call]:
        return lambda: Call(getattr(owner(), called), given)

    def of(function: Callable[..., Any], /, **given: Any) -> Callable[[], Call]:
        return lambda: Call(function, given)

    clients = theory.random_clients(clients=4, dimension=2)
    plan = theory.Plan(per_round=2)
    constants, setting = theory.Constants(1.0, 1.0, 1.0), theory.Setting(4, 2, 1)
    of_theory = {"constants": constants, "setting": setting}
    x, y = np.zeros((8, 3)), np.array([0, 1] * 4)
    cohort = {"seed": 0, "round_": 0, "size": 2, "samples": np.array([3, 4, 5])}
    columns = {"label": "y", "client": "who", "features": ["a", "b"], "test_fraction": 0.5}
    frame_options = columns | {"test": None, "partition": None, "seed": 0}
    server = {"learning_rate": 1.0}
    adaptive = server | {"momentum": 0.9, "tau": 1e-3}
    found: dict[str, Callable[[], Call]] = {
        "run": lambda: Call(
            fedmom.run,
            small
            | {"model": "logreg", "algorithm": "fedavg", "callbacks": ()}
            | {name: None for name in RunConfig.model_fields if name not in small}
            | {"model": "logreg", "algorithm": "fedavg"},
        ),
        "compare": of(
            fedmom.compare, algorithms=["fedavg"], seeds=1, callbacks=(), lr=0.1, **small
        ),
        "sweep": of(fedmom.sweep, grid={"lr": [0.1]}, callbacks=(), model="logreg", **small),
        "resume": lambda: Call(
            fedmom.resume,
            {"folder": run().path, "progress": False, "callbacks": (), "accept_changes": False}
            | {"runtime": None, "data": "synthetic:clients=4"},
        ),
        "load": lambda: Call(fedmom.load, {"folder": run().path, "data": "synthetic:clients=4"}),
        "report": lambda: Call(
            fedmom.report, {"runs": run(), "out": folder / "page.html", "target": 0.5}
        ),
        "Run": of(fedmom.Run, path=folder / "kept", build=lambda: None),
        "Runs": of(fedmom.Runs, path=folder / "kept", runs={}),
        "Run.clients": method(run, "clients"),
        "Run.plot": method(run, "plot"),
        "Run.report": lambda: Call(run().report, {"out": folder / "run.html"}),
        "Runs.resume": method(runs, "resume", progress=False, callbacks=()),
        "Runs.plot": method(runs, "plot"),
        "Runs.report": lambda: Call(runs().report, {"out": folder / "runs.html"}),
        "Run.outputs": method(run, "outputs", x=np.zeros((2, 60))),
        "Run.predict": method(run, "predict", x=np.zeros((2, 60))),
        "Run.export": lambda: Call(
            run().export, {"folder": folder / f"exported{next(NUMBERS)}", "onnx_batch": None}
        ),
        "Run.resume": method(run, "resume", progress=False, callbacks=()),
        "Run.sample": method(texts, "sample", prompt="a", length=3, temperature=0.5, seed=0),
        "texts.predict": method(texts, "predict", x=["abc"]),
        "Result.last": lambda: Call(run().result.last, {"split": "test", "key": "accuracy"}),
        "Algorithm": of(
            fedmom.Algorithm,
            server=optax.sgd(1.0),
            work=fedmom.LocalWork(steps=1),
            client=None,
            rule=fedmom.mean(),
            stages=(fedmom.clip(norm=1.0),),
        ),
        "Client": of(fedmom.Client, run=lambda *given: (given[0], given[1], {})),
        "Rule": of(fedmom.Rule, weigh=lambda samples: samples * 1.0),
        "Server": of(fedmom.Server, init=lambda _: (), step=lambda *g: (g[2], g[1], {})),
        "Stage": of(fedmom.Stage, name="half"),
        "LocalWork": of(fedmom.LocalWork, steps=1),
        "LocalWork.count": method(lambda: fedmom.LocalWork(epochs=1), "count", round_=0, samples=9),
        "full_gradient": of(fedmom.full_gradient, lr=0.1),
        "mean": of(fedmom.mean, weighting="cohort"),
        "median": of(fedmom.median, weighting="cohort"),
        "trimmed_mean": of(fedmom.trimmed_mean, weighting="cohort", share=0.1),
        "clip": of(fedmom.clip, norm=1.0),
        "noise": of(fedmom.noise, std=1.0),
        "quantize": of(fedmom.quantize, bits=8),
        "krum": of(fedmom.krum, weighting="cohort", attackers=1),
        "multi_krum": of(fedmom.multi_krum, weighting="cohort", attackers=1, keep=2),
        "geometric_median": of(fedmom.geometric_median, iterations=2, smoothing=0.1),
        "centered_clipping": of(fedmom.centered_clipping, radius=1.0, iterations=2),
        "norm_bound": of(fedmom.norm_bound, weighting="cohort", norm=1.0),
        "bucketing": of(fedmom.bucketing, size=2),
        "nearest_neighbour_mixing": of(fedmom.nearest_neighbour_mixing, attackers=1),
        "Attack": of(fedmom.Attack, share=0.1),
        "sign_flip": of(fedmom.sign_flip, share=0.1, scale=2.0),
        "gaussian": of(fedmom.gaussian, share=0.1, scale=2.0),
        "label_flip": of(fedmom.label_flip, share=0.1),
        "backdoor": of(fedmom.backdoor, share=0.1, target=1, part=0.5, scale=2.0),
        "alie": of(fedmom.alie, share=0.1, z=1.0),
        "ipm": of(fedmom.ipm, share=0.1, scale=2.0),
        "torch_op": of(fedmom.torch_op, name="aten.erfinv"),
        "Workload": lambda: Call(fedmom.Workload, dict(vars(_workload()), seed=0)),
        "Features": of(fedmom.Features, kind="vector", shape=(3,), classes=2, task="classes"),
        "FederatedData": lambda: Call(
            fedmom.FederatedData,
            {f: getattr(data(), f) for f in inspect.signature(fedmom.FederatedData).parameters},
        ),
        "FederatedData.split": method(data, "split", name="train"),
        "from_arrays": of(
            fedmom.from_arrays, x=x, y=y, client_ids=y, test_fraction=0.5, partition=None, seed=0
        ),
        "from_torch": of(
            fedmom.from_torch,
            dataset=[(np.zeros(2), 0), (np.ones(2), 1)] * 4,
            client_ids=[0, 1] * 4,
        ),
        "from_images": of(fedmom.from_images, folder=folder / "pictures", size=8, seed=0),
        "from_csv": of(fedmom.from_csv, path=folder / "t.csv", **frame_options),
        "from_parquet": of(fedmom.from_parquet, path=folder / "t.parquet", **frame_options),
        "from_dataframe": of(fedmom.from_dataframe, frame=frame, **frame_options),
        "from_texts": of(
            fedmom.from_texts, texts=["abcabcabc", "cbacba"], client_ids=[0, 1], window=2, seed=0
        ),
        "load_data": of(fedmom.load_data, spec="synthetic:clients=4"),
        "build_model": lambda: Call(
            fedmom.build_model, {"spec": "logreg", "features": data().features}
        ),
        "model": lambda: Call(
            fedmom.model, {"net": _net(), "data": data(), "metrics": ["accuracy"], "loss": None}
        ),
        "Model": of(fedmom.Model, init=_net()[0], apply=_net()[1]),
        "Adapted": lambda: Call(
            fedmom.Adapted,
            {"base": _workload().model, "init": _net()[0], "frozen": _net()[0]}
            | {"merge": lambda trained, frozen: trained + frozen},
        ),
        "bfloat16": lambda: Call(fedmom.bfloat16, {"model": _workload().model}),
        "frozen": lambda: Call(fedmom.frozen, {"model": _workload().model, "train": "0/w"}),
        "lora": lambda: Call(
            fedmom.lora,
            {"model": _workload().model, "rank": 2, "alpha": 8.0, "targets": "*", "train": ""},
        ),
        "pretrained": lambda: Call(
            fedmom.pretrained,
            {"model": _workload().model, "file": f"{exported()}/model.safetensors", "sha256": ""},
        ),
        "diloco": of(
            fedmom.diloco,
            learning_rate=0.7,
            momentum=0.9,
            lr=4e-4,
            steps=2,
            batch_size=2,
            warmup=3,
            weight_decay=0.1,
            b1=0.9,
            b2=0.99,
            accumulate=1,
        ),
        "Metric": of(fedmom.Metric, name="right", per_sample=lambda *given: given[0]),
        "LocalRuntime": lambda: Call(
            fedmom.LocalRuntime, {"workload": _workload(), "workers": 1, "vectorized": None}
        ),
        "LocalRuntime.evaluate": lambda: Call(
            fedmom.LocalRuntime(_workload()).evaluate,
            {"params": _state().params, "split": "test", "budget": None},
        ),
        "LocalRuntime.ask": lambda: Call(
            fedmom.LocalRuntime(_workload()).ask,
            {"round_": 0, "clients": np.array([0, 1]), "broadcast": _state().params},
        ),
        "evaluate": lambda: Call(
            fedmom.evaluate,
            {"runtime": fedmom.LocalRuntime(_workload()), "params": _state().params}
            | {"split": "test", "budget": None},
        ),
        "model_of": lambda: Call(fedmom.model_of, {"workload": _workload(), "state": _state()}),
        "start": lambda: Call(fedmom.start, {"workload": _workload()}),
        "train": lambda: Call(
            _trained,
            {"runtime": fedmom.LocalRuntime(_workload()), "pace": fedmom.synchronous(2)}
            | {"rounds": 1, "state": None, "bad_replies": "stop", "commit": True, "watch": None},
        ),
        "synchronous": of(fedmom.synchronous, size=2, sampler=fedmom.uniform, timeout=None),
        "over_selected": of(fedmom.over_selected, size=2, extra=0.5, timeout=None),
        "buffered": of(fedmom.buffered, size=2, in_flight=4, timeout=None),
        "uniform": of(fedmom.uniform, **cohort),
        "poisson": of(fedmom.poisson, **cohort),
        "weighted": of(fedmom.weighted, **cohort),
        "servers.fedsgd": of(fedmom.servers.fedsgd, learning_rate=1.0, lr=0.1),
        "servers.fedavg": of(fedmom.servers.fedavg, **server),
        "servers.fedmom": of(fedmom.servers.fedmom, momentum=0.9, **server),
        "servers.fedmom_zero_start": of(fedmom.servers.fedmom_zero_start, momentum=0.9, **server),
        "servers.fedavgm": of(fedmom.servers.fedavgm, momentum=0.9, **server),
        "servers.fedadagrad": of(fedmom.servers.fedadagrad, **adaptive),
        "servers.fedadam": of(fedmom.servers.fedadam, beta2=0.99, **adaptive),
        "servers.fedyogi": of(fedmom.servers.fedyogi, beta2=0.99, **adaptive),
        "servers.averaged": of(fedmom.servers.averaged, optimizer=optax.sgd(1.0), decay=0.9),
        "World": of(fedmom.World, name="mine", pause=1.0, deadline=5.0, least=0),
        "in_world": lambda: Call(
            fedmom.in_world, {"workload": _workload(), "world": "dropout:rate=0.5"}
        ),
        "WorldRuntime": lambda: Call(
            fedmom.WorldRuntime,
            {"runtime": fedmom.LocalRuntime(_workload()), "pace": fedmom.synchronous(2)}
            | {"world": fedmom.worlds.dropout(rate=0.5)},
        ),
        "worlds.online": of(fedmom.worlds.online, share=0.5, spread=0.1),
        "worlds.diurnal": of(
            fedmom.worlds.diurnal, low=0.1, high=0.5, zones=2, peak=2.0, period=9.0
        ),
        "worlds.outages": of(fedmom.worlds.outages, share=0.1, groups=3, seconds=9.0),
        "worlds.trace": of(fedmom.worlds.trace, file=folder / "there.csv", period=0.0),
        "worlds.speed": of(
            fedmom.worlds.speed, median=9.0, spread=0.5, distribution="lognormal", jitter=0.1
        ),
        "worlds.network": of(
            fedmom.worlds.network, down=9.0, up=3.0, spread=0.5, distribution="uniform", latency=1.0
        ),
        "worlds.capacity": of(fedmom.worlds.capacity, file=folder / "fast.csv"),
        "worlds.pause": of(fedmom.worlds.pause, seconds=9.0),
        "worlds.dropout": of(fedmom.worlds.dropout, rate=0.1),
        "worlds.partial": of(fedmom.worlds.partial, share=0.1, replies="kept"),
        "worlds.deadline": of(fedmom.worlds.deadline, seconds=9.0, late="dropped", least=1),
        "worlds.reweighed": of(fedmom.worlds.reweighed, most=5.0),
        "metrics.top": of(fedmom.metrics.top, k=2),
        "metrics.position_top": of(fedmom.metrics.position_top, k=2),
        "metrics.auc": lambda: Call(fedmom.metrics.auc, {}),
        "theory.Constants": of(theory.Constants, smoothness=1.0, variance=1.0, gap=1.0),
        "theory.Setting": of(theory.Setting, clients=4, per_round=2, local_steps=1),
        "theory.Plan": of(theory.Plan, per_round=2, steps=1, weighting="population"),
        "theory.random_clients": of(theory.random_clients, clients=4, dimension=2, condition=2.0),
        "theory.best_lr": of(theory.best_lr, clients=clients, plan=plan, rounds=5, momentum=0.0),
        "theory.best_momentum": of(theory.best_momentum, clients=clients, plan=plan, rounds=5),
        "theory.duels": of(theory.duels, clients=clients, plan=plan, rounds=[3]),
        "theory.expected_excess": of(
            theory.expected_excess, clients=clients, plan=plan, lr=[0.1], rounds=3
        ),
        "theory.corollary1_applies": of(theory.corollary1_applies, power=0.75),
        "theory.corollary2_display": of(theory.corollary2_display, rounds=5, **of_theory),
        "theory.lemma1": of(
            theory.lemma1, lr=0.1, loss=1.0, gradient_square=1.0, local_squares=1.0, **of_theory
        ),
        "theory.power_schedule": of(theory.power_schedule, first=0.1, power=0.75, rounds=4),
        "theory.power_vanishes": of(theory.power_vanishes, power=0.75),
        "theory.theorem2_constant": of(theory.theorem2_constant, **of_theory),
        "theory.theorem2_display": of(theory.theorem2_display, rounds=5, **of_theory),
        "QuadraticClients": of(
            theory.QuadraticClients,
            sizes=[1, 2],
            curvature=[1.0],
            optima=[[0.0], [1.0]],
            noise=[0.0],
            start=[1.0],
        ),
        "theory.Plan.eta": of(plan.eta, clients=4),
        "theory.Plan.rates": of(plan.rates, rounds=4),
        **{
            f"theory.Theorem.{name}": of(
                getattr(theory.CORRECTED_FEDMOM, name), **of_theory, **given
            )
            for name, given in {
                "applies": {"lr": 0.001},
                "best": {"rounds": 5},
                "best_lr": {"rounds": 5},
                "bound": {"lr": 0.001, "rounds": 5},
                "floor": {"lr": 0.001},
                "max_lr": {},
                "objection": {"lr": 0.001},
                "schedule_bounds": {"lrs": [0.001, 0.0005]},
            }.items()
        },
        "named": of(fedmom.named, value=object, name="misused"),
        "from_huggingface": lambda: Call(
            fedmom.from_huggingface,
            {"dataset": _hugging_face(), "label": "y", "client": "who", "features": ["a", "b"]},
        ),
        "LocalRuntime.prepare": lambda: Call(
            fedmom.LocalRuntime(_workload()).prepare, {"cohort": 2, "sums": True}
        ),
        "metrics.f1": of(fedmom.metrics.f1, average="macro"),
        **{
            f"metrics.{name}": of(getattr(fedmom.metrics, name))
            for name in (
                "accuracy",
                "mae",
                "mse",
                "rmse",
                "perplexity",
                "position_accuracy",
            )
        },
        "SCHEDULES.register": lambda: Call(
            type(fedmom.SCHEDULES)("schedule", {}).register,
            {"name": "flat", "function": lambda: lambda _: 0.1},
        ),
    }
    return found


def parameters(call: Call) -> list[str]:
    """Return what can be given to a function: what its signature names, and settings."""
    signature = inspect.signature(call.function).parameters
    named = [name for name, parameter in signature.items() if parameter.kind not in KINDS]
    settings = [name for name in call.arguments if name not in named]
    return named + settings


class Outcome(NamedTuple):
    """What became of a misuse, where it is not as promised."""

    what: str
    said: str


def misuse(call: Call, parameter: str, value: Any) -> Outcome | None:
    """Call with one wrong value; return what is not as promised."""
    given = {k: v for k, v in call.arguments.items() if v is not None} | {parameter: value}
    try:
        with limited():
            call.function(**given)
    except fedmom.FedMomError as error:
        said = str(error)
        names = (parameter, parameter.replace("_", "-"), *ALSO.get(parameter, ()))
        told = any(name.lower() in said.lower() for name in names)
        if not told and not _shows(said, value):
            return Outcome("does not say which argument", said)
        return Outcome("is more than two lines", said) if said.count("\n") > 2 else None
    except Exception as error:  # what a user would see as a traceback
        return Outcome("is a traceback", f"{type(error).__name__}: {error}"[:300])
    return None


def _shows(said: str, value: Any) -> bool:
    try:
        shown = (str(value), repr(value)[1:-1])
    except Exception:
        return False
    return any(text[:40] in said for text in shown if text)
