"""Wrong values returned by every function that users bring.

A slot trains for one round with one function replaced by one that returns a given value. That may
succeed, for some values are right somewhere, or end in a ``FedMomError``. All around the function
is the package's own, so that an exception of another kind is the package's, too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fedmom

Slot = Callable[[Any], object]  # trains with a function that returns this value


def call(value: Any) -> Callable[..., Any]:
    """Return a function that returns the value, whatever it is given."""
    return lambda *_, **__: value


def _first(value: Any) -> Callable[..., Any]:
    return lambda _given, state, *_: (value, state, {})


def _second(value: Any) -> Callable[..., Any]:
    return lambda given, *_: (given, value, {})


def _third(value: Any) -> Callable[..., Any]:
    return lambda given, state, *_: (given, state, value)


# Of the three values that most parts of a method return.
PARTS = {"value": _first, "state": _second, "metrics": _third}


def _right(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    return outputs.argmax(-1) == labels


def _local(params: Any, state: Any, problem: Any, key: jax.Array) -> tuple[Any, Any, Any]:
    trained, loss = problem.train(params, key)
    return jax.tree.map(jnp.subtract, params, trained), state, {"loss": loss}


def _mean(rows: Any, _weights: jax.Array, state: Any) -> tuple[Any, Any, Any]:
    return jax.tree.map(lambda r: r.mean(0), rows), state, {}


def _with_state(params: jax.Array, state: Any, x: jax.Array, _key: Any) -> tuple[jax.Array, Any]:
    return x @ params, state


NET = fedmom.Model(lambda _: jnp.zeros((60, 10)), lambda w, x, _: x @ w)
PLAIN = fedmom.Algorithm(optax.sgd(1.0), fedmom.LocalWork(lr=0.1, steps=1))
CLIENT = fedmom.Client(_local)
SERVER = fedmom.Server(lambda _: (), lambda g, s, w: (w - g, s, {}))
OPTIMIZER = optax.GradientTransformation(lambda _: (), lambda g, s, _=None: (g, s))


class Trial(NamedTuple):
    """Trains for one round with some parts of a run replaced."""

    data: fedmom.FederatedData
    folder: Path

    def train(self, model: fedmom.Model = NET, pace: Any = None, **parts: Any) -> None:
        attack = parts.pop("attack", None)
        algorithm = PLAIN._replace(**parts)
        runtime = fedmom.LocalRuntime(fedmom.Workload(self.data, model, algorithm, 0, attack))
        for state, _ in fedmom.train(runtime, pace=pace or fedmom.synchronous(2), rounds=1):
            fedmom.evaluate(runtime, state.params, "test")

    def model(self, **functions: Any) -> None:
        self.train(NET._replace(**functions))

    def client(self, **functions: Any) -> None:
        self.train(client=CLIENT._replace(**functions))

    def server(self, **functions: Any) -> None:
        self.train(server=SERVER._replace(**functions))

    def rule(self, **functions: Any) -> None:
        self.train(rule=fedmom.Rule(**{"weigh": lambda n: n * 1.0} | functions))

    def stage(self, **functions: Any) -> None:
        self.train(stages=(fedmom.Stage("half", **functions),))

    def work(self, **options: Any) -> None:
        self.train(work=fedmom.LocalWork(**{"lr": 0.1, "steps": 1} | options))

    def run(self, **settings: Any) -> None:
        settings = {"model": "logreg", "rounds": 1, "progress": False} | settings
        fedmom.run(self.data, out=self.folder / "run", overwrite=True, **settings)


def slots(trial: Trial) -> dict[str, Slot]:
    """Return what trains with a function that returns a value, by the function's name."""
    t, metric = trial, fedmom.Metric
    found: dict[str, Slot] = {
        "Model.init": lambda v: t.model(init=call(v)),
        "Model.apply": lambda v: t.model(apply=call(v)),
        "Model.loss": lambda v: t.model(loss=call(v)),
        "Model.train": lambda v: t.model(
            init=lambda _: fedmom.Variables(jnp.zeros((60, 10)), ()),
            apply=lambda w, x, _: x @ w.trained,
            train=call(v),
            state="average",
        ),
        "Metric.per_sample": lambda v: t.model(metrics=(metric("m", call(v)),)),
        "Metric.value": lambda v: t.model(metrics=(metric("m", _right, call(v)),)),
        "Client.run": lambda v: t.client(run=call(v)),
        "Client.init": lambda v: t.client(init=call(v)),
        "Client.form": lambda v: t.client(form=call(v)),
        "Client.personal": lambda v: t.client(personal=call(v)),
        "Server.init": lambda v: t.server(init=call(v)),
        "Server.step": lambda v: t.server(step=call(v)),
        "Server.broadcast": lambda v: t.server(broadcast=call(v)),
        "Server.model": lambda v: t.server(model=call(v)),
        "Server.norm": lambda v: t.server(norm=call(v)),
        "Rule.weigh": lambda v: t.rule(weigh=call(v)),
        "Rule.scale": lambda v: t.rule(scale=call(v)),
        "Rule.each": lambda v: t.rule(each=call(v)),
        "Rule.init": lambda v: t.rule(each=_mean, init=call(v)),
        "Stage.client_init": lambda v: t.stage(client_init=call(v), encode=_third({})),
        "Stage.send": lambda v: t.stage(send=call(v)),
        "Stage.decode": lambda v: t.stage(encode=_third({}), decode=call(v)),
        "Stage.init": lambda v: t.stage(init=call(v), after=_third({})),
        "Stage.enforce": lambda v: t.stage(enforce=call(v)),
        "Stage.mix": lambda v: t.stage(mix=call(v)),
        "Stage.mix, rows": lambda v: t.stage(mix=lambda _rows, weights, *_: (v, weights)),
        "Stage.mix, weights": lambda v: t.stage(mix=lambda rows, *_: (rows, v)),
        "Stage.rows_after": lambda v: t.stage(mix=lambda r, w, *_: (r, w), rows_after=call(v)),
        "Attack.poison": lambda v: t.train(attack=fedmom.Attack(0.5, poison=call(v))),
        "Attack.poison, labels": lambda v: t.train(
            attack=fedmom.Attack(0.5, poison=lambda x, *_: (x, v))
        ),
        "Attack.forge": lambda v: t.train(attack=fedmom.Attack(0.5, forge=call(v))),
        "Attack.collude": lambda v: t.train(attack=fedmom.Attack(0.5, collude=call(v))),
        "Metric.inputs": lambda v: t.model(metrics=(metric("m", _right, inputs=call(v)),)),
        "LocalWork.lr": lambda v: t.work(lr=call(v)),
        "LocalWork.steps": lambda v: t.work(steps=call(v)),
        "LocalWork.solver": lambda v: t.work(solver=call(v)),
        "init of a solver": lambda v: t.work(solver=OPTIMIZER._replace(init=call(v))),
        "update of a solver": lambda v: t.work(solver=OPTIMIZER._replace(update=call(v))),
        "init of an optimizer": lambda v: t.train(server=OPTIMIZER._replace(init=call(v))),
        "update of an optimizer": lambda v: t.train(server=OPTIMIZER._replace(update=call(v))),
        "sampler": lambda v: t.train(pace=fedmom.synchronous(2, call(v))),
        "net": lambda v: t.train(fedmom.model((call(v), lambda w, x, _: x @ w), t.data)),
        "state of a net": lambda v: t.train(
            fedmom.model((lambda _: (jnp.zeros((60, 10)), v), _with_state), t.data, has_state=True)
        ),
        "setting lr": lambda v: t.run(lr=call(v)),
        "setting server_lr": lambda v: t.run(server_lr=call(v)),
        "setting model": lambda v: t.run(model=call(v)),
        "setting algorithm": lambda v: t.run(algorithm=call(v)),
        "callback": lambda v: t.run(callbacks=[call(v)]),
    }
    for name, part in PARTS.items():
        found |= _of_one_part(t, name, part)
    return found


def _of_one_part(t: Trial, name: str, part: Callable[[Any], Any]) -> dict[str, Slot]:
    """Return slots of what returns three values, one of them replaced."""

    def each(value: Any) -> Callable[..., Any]:
        return lambda rows, weights, state: part(value)(_mean(rows, weights, state)[0], state)

    return {
        f"Client.run, {name}": lambda v: t.client(run=part(v)),
        f"Server.step, {name}": lambda v: t.server(step=part(v)),
        f"Stage.encode, {name}": lambda v: t.stage(encode=part(v)),
        f"Stage.after, {name}": lambda v: t.stage(after=part(v)),
        f"Rule.each, {name}": lambda v: t.rule(each=each(v)),
    }
