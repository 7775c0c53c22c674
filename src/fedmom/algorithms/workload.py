"""A workload: the one value that says what is run, and its parts put together for use."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from fedmom.algorithms.base import (
    Algorithm,
    Attack,
    Client,
    Reported,
    Rule,
    Server,
    Stage,
    as_server,
    reported,
)
from fedmom.algorithms.client import LOCAL_TRAINING
from fedmom.algorithms.forms import Form
from fedmom.algorithms.hostile import Collusion, attacked, collusion
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.model_state import with_model_state
from fedmom.algorithms.rules import mean
from fedmom.algorithms.trial import try_attack, try_method, try_train
from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.prng import init_key
from fedmom.core.types import Params
from fedmom.data.batches import reader
from fedmom.data.federated import FederatedData
from fedmom.models import base
from fedmom.models.adapters import example
from fedmom.models.base import Model
from fedmom.models.metrics import Metric, check_names
from fedmom.models.variables import Variables, whole

HIGHEST_SEED = 2**32 - 1
PART_NAME = r"(?!(client|server)$)[A-Za-z][\w -]*"


class Broadcast(NamedTuple):
    """What clients receive where stages send something, too."""

    method: Any
    stages: tuple[Any, ...]


class Method(NamedTuple):
    """An algorithm put together for one model: what runtimes and the loop call."""

    client: Client  # the stages and the model's state included
    server: Server  # the model's state included
    stages: tuple[Stage, ...]
    rule: Rule
    collusion: Collusion | None = None  # of a simulated attack

    def broadcast(self, params: Params, server: Any, stages: tuple[Any, ...]) -> Any:
        """Return what clients receive, given the states of the server and of its stages."""
        sent = self.server.broadcast(params, server)
        if all(stage.send is None for stage in self.stages):
            return sent
        pairs = zip(self.stages, stages, strict=True)
        return Broadcast(sent, tuple(s.send(state) if s.send else () for s, state in pairs))

    def forms(self, broadcast: Any) -> list[Params]:
        """Return the shapes and types of an update as the client makes it, then after each stage.

        The last one is what is sent.
        """
        found = [jax.eval_shape(self.client.form, broadcast)]
        for stage, news in zip(self.stages, _news(broadcast, self.stages), strict=True):
            found.append(_encoded(stage, found[-1], news))
        return found

    def first_states(self, params: Params) -> tuple[Any, tuple[Any, ...], Any]:
        """Return the first states of server, stages and rule."""
        server = self.server.init(params)
        forms: list[Any] = [self.client.form(self.server.broadcast(params, server))]
        states = []
        for stage in self.stages:
            states.append(stage.init(forms[-1]))
            news = stage.send(states[-1]) if stage.send else ()
            forms.append(_encoded(stage, forms[-1], news))
        return server, tuple(states), self.rule.init(self.decoded(forms))

    def decoded(self, forms: Sequence[Params]) -> Params:
        """Return the form of what the rule combines: those stages that decode have done so.

        Args:
            forms: The form of an update before the stages, and after each of them.
        """
        form = forms[-1]
        places = zip(self.stages, forms, forms[1:], strict=False)
        for stage, its_input, its_output in reversed(list(places)):
            if stage.decode is None:
                continue
            if Form.of(form) != Form.of(its_output):
                raise FedMomError(
                    f"The stage {stage.name} cannot decode updates: a later stage changes their"
                    f" form and has no decode. Put {stage.name} last."
                )
            form = its_input
        return form

    @property
    def adds_up(self) -> bool:
        """Whether replies may be added up on their way to the server."""
        decodes = any(stage.decode for stage in self.stages)
        return not (self.needs_rows or decodes or self.client.ranges)

    @property
    def needs_rows(self) -> bool:
        """Whether all replies of a round are needed at once."""
        mixes = any(stage.mix for stage in self.stages)
        return self.rule.needs == "each" or mixes or self.collusion is not None

    def makes_sense_with(self, replies: int) -> bool:
        """Return whether rule and stages do what they promise with N replies."""
        for stage in self.stages:
            if replies < stage.least:
                return False
            replies = stage.rows_after(replies)
        return replies >= self.rule.least

    @property
    def least(self) -> int:
        """The fewest replies with which rule and stages do what they promise."""
        return next(n for n in itertools.count(1) if self.makes_sense_with(n))

    @property
    def is_plain(self) -> bool:
        """Whether clients do plain local training and send its update as it is."""
        return self.client == LOCAL_TRAINING


@dataclass(frozen=True, eq=False)
class Workload:
    """What is run: data, model, algorithm with its local work, and seed.

    Runtimes are made from it, and the round loop reads it from the runtime.

    Args:
        data: The population.
        model: The model.
        algorithm: The method, with its local work.
        seed: The seed of the run, from 0 to 4,294,967,295.
        attack: What a share of the clients does to harm the model, if it is simulated.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
        >>> workload.method.rule.needs
        'sum'
    """

    data: FederatedData
    model: Model
    algorithm: Algorithm
    seed: int = 0
    attack: Attack | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        _check_kind("data", self.data, FederatedData, "fedmom.load_data or fedmom.from_arrays")
        _check_kind("model", self.model, Model, "fedmom.model(net, data)")
        if self.attack is not None:
            self._take_attack(self.attack)
        check_names(self.model.metrics)
        _check_kind("algorithm", self.algorithm, Algorithm, "fedmom.Algorithm(server, work)")
        if self.algorithm.work is None:
            raise FedMomError(
                "Workload: the algorithm does not say what clients do. Give its local work:"
                " fedmom.Algorithm(server, fedmom.LocalWork(lr=0.1, steps=10))."
            )
        _check_parts(self.algorithm)
        if not (type(self.seed) is int and 0 <= self.seed <= HIGHEST_SEED):
            raise FedMomError(
                f"seed is {short(self.seed)}. It must be a whole number, 0 to {HIGHEST_SEED:,}."
            )

    def _take_attack(self, attack: Attack) -> None:
        """Refuse an attack that does not fit, and measure what it wants."""
        _check_kind("attack", attack, Attack, "fedmom.sign_flip(share=0.1)")
        if not isinstance(attack.metric, Metric | None):
            raise FedMomError(
                f"Attack: metric is {short(attack.metric)}. It must be a fedmom.Metric, or None."
            )
        if attack.check is not None:
            attack.check(self.data.features)
        if attack.metric is not None and attack.metric not in self.model.metrics:
            metrics = (*self.model.metrics, attack.metric)
            object.__setattr__(self, "model", self.model._replace(metrics=metrics))

    def try_parts(self) -> None:
        """Refuse a model or an algorithm with a function that does not return what it must.

        A second call costs nothing.
        """
        if "tried" in self.__dict__:
            return
        model = self.model.plain
        if not all(map(_is_built_in, (model.init, model.loss, *model.metrics))):
            base.check(model, self.data.features, example(self.data))
            try_train(model, example(self.data))
        params = base.first_form(self.model)
        trained = params.trained if isinstance(params, Variables) else params
        try_method(self.algorithm, trained)
        if self.attack is not None:
            x = example(self.data)
            read, rows = reader(self.data.features), np.zeros(len(x), np.int32)
            batch = jax.eval_shape(read, dict(self.data.arrays), rows)
            client = self.algorithm.client
            update = jax.eval_shape(client.form, trained) if client else trained
            try_attack(self.attack, update, batch, self.data.features)
        self.__dict__["tried"] = True

    @property
    def work(self) -> LocalWork:
        """The local work."""
        assert self.algorithm.work is not None
        return self.algorithm.work

    @cached_property
    def method(self) -> Method:
        """The algorithm, put together for the model."""
        algorithm, attack, collude = self.algorithm, self.attack, None
        if attack is not None:
            here = attack, self.seed, self.data.clients
            collude = collusion(*here)
            client = attacked(algorithm.client or LOCAL_TRAINING, *here, self.data.features)
            algorithm = algorithm._replace(client=client)
        whole = with_model_state(algorithm, self.model)
        client = with_stages(whole.client or LOCAL_TRAINING, whole.stages)
        return Method(client, as_server(whole.server), whole.stages, whole.rule or mean(), collude)

    def params(self) -> Params:
        """Return the model's first parameters."""
        return self.model.init(init_key(self.seed))

    @cached_property
    def frozen(self) -> Params | None:
        """The parameters that are not trained, nor sent, if the model has some."""
        adapted = self.model.adapted
        return None if adapted is None else jax.device_put(adapted.frozen(init_key(self.seed)))

    def merged(self, params: Params) -> Params:
        """Return the parameters of ``model.plain``: those that are trained and those that are not.

        Args:
            params: The model's parameters, as in ``State`` and as ``fedmom.model_of`` returns.
        """
        adapted = self.model.adapted
        return params if adapted is None else adapted.merged(whole(params, self.frozen))

    def broadcast_form(self) -> Any:
        """Return the shapes and types of what clients receive."""

        def first(params: Params) -> Any:
            return self.method.broadcast(params, *self.method.first_states(params)[:2])

        return jax.eval_shape(first, self.params())


def _is_built_in(part: Any) -> bool:
    if isinstance(part, Metric) and part.inputs is not None:
        return False
    function = part.per_sample if isinstance(part, Metric) else part
    inside = ("base", "built_in", "char_gpt", "losses", "metrics")  # of fedmom.models
    return str(function.__module__) in [f"fedmom.models.{name}" for name in inside]


def _check_kind(name: str, value: Any, kind: type, maker: str) -> None:
    if not isinstance(value, kind):
        raise FedMomError(
            f"Workload: {name} is of type {type(value).__name__}, not fedmom.{kind.__name__}. Make"
            f" one with {maker}."
        )


def _check_parts(algorithm: Algorithm) -> None:
    """Refuse parts in each other's places, and names that metrics cannot have."""
    as_server(algorithm.server)
    places = [("work", LocalWork), ("client", Client), ("rule", Rule)]
    kinds = [(name, getattr(algorithm, name), kind) for name, kind in places]
    kinds += [("stages", stage, Stage) for stage in algorithm.stages]
    for name, value, kind in kinds:
        if not isinstance(value, kind | None):
            raise FedMomError(
                f"Algorithm: {name} is of type {type(value).__name__}, not fedmom.{kind.__name__}."
                " Its parts are server, work, client, rule and stages, in this order."
            )
        part = value.name if isinstance(value, Rule | Stage) else "part"
        if not (isinstance(part, str) and re.fullmatch(PART_NAME, part)):
            raise FedMomError(
                f"A stage or rule is called {part!r}. Use letters, digits, spaces, - and _, and"
                " neither client nor server: its metrics have this name."
            )


@lru_cache(maxsize=256)
def with_stages(client: Client, stages: tuple[Stage, ...]) -> Client:
    """Return a client whose updates pass through the stages before they are sent."""
    if all(stage.encode is None and stage.send is None for stage in stages):
        return client
    names = stage_names(stages)

    def init(broadcast: Any) -> Any:
        inside, update = [], client.form(_method_part(broadcast))
        for stage, news in zip(stages, _news(broadcast, stages), strict=True):
            inside.append(stage.client_init(update))
            update = optax.tree.zeros_like(_encoded(stage, update, news))
        return client.init(_method_part(broadcast)), tuple(inside)

    def run(broadcast: Any, state: Any, problem: Any, key: jax.Array) -> Any:
        own, inside = state
        returned = client.run(_method_part(broadcast), own, problem, key)
        update, own, metrics = reported(returned, "run of the client")
        # The client has measured its own update, not what the stages have made of it.
        numbers = {name: value for name, value in metrics.items() if name != "norm"}
        after = []
        # Steps fold 0, 1, 2, ... into the client's key; the stages' number is one they never reach.
        apart = jax.random.fold_in(key, 2**32 - 1)
        news = _news(broadcast, stages)
        for place, (stage, state_of, sent) in enumerate(zip(stages, inside, news, strict=True)):
            encode = stage.encode or _as_it_is
            found = encode(update, state_of, sent, jax.random.fold_in(apart, place))
            update, changed, of_stage = reported(found, f"encode of {names[place]}")
            after.append(changed)
            numbers |= {f"{names[place]}/{name}": value for name, value in of_stage.items()}
        return update, (own, tuple(after)), numbers

    def form(broadcast: Any) -> Params:
        return client.form(_method_part(broadcast))

    own_model: Any = client.personal
    shows = own_model and (lambda params, state: own_model(params, state[0]))
    return Client(run, init, form, shows, client.ranges)


def stage_names(stages: Sequence[Stage]) -> list[str]:
    """Return a name for each stage; the second "clip" is called "clip_2"."""
    names: list[str] = []
    for stage in stages:
        numbered = (f"{stage.name}_{number}" for number in itertools.count(2))
        free = (name for name in itertools.chain([stage.name], numbered) if name not in names)
        names.append(next(free))
    return names


def _method_part(broadcast: Any) -> Any:
    return broadcast.method if isinstance(broadcast, Broadcast) else broadcast


def _news(broadcast: Any, stages: Sequence[Stage]) -> tuple[Any, ...]:
    """Return what each stage has sent."""
    return broadcast.stages if isinstance(broadcast, Broadcast) else ((),) * len(stages)


def _encoded(stage: Stage, update: Params, news: Any) -> Params:
    """Return the shapes and types of an update that has passed through a stage."""

    def sent(update: Params) -> Params:
        encode = stage.encode or _as_it_is
        return encode(update, stage.client_init(update), news, jax.random.key(0))[0]

    return jax.eval_shape(sent, update)


def _as_it_is(update: Params, state: Any, _sent: Any, _key: Any) -> tuple[Params, Any, Reported]:
    return update, state, {}
