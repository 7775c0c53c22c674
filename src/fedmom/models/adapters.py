"""Nets of PyTorch, flax, equinox and haiku, and plain functions, as models."""

import glob
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked, short, takes
from fedmom.core.errors import FedMomError
from fedmom.core.registry import pick
from fedmom.core.tracing import of_numbers, traced
from fedmom.core.types import Params
from fedmom.data.federated import Features, FederatedData
from fedmom.models import METRICS, build
from fedmom.models.base import TASKS, Model, first_form
from fedmom.models.fine_tuning import frozen
from fedmom.models.gray_images import with_channel
from fedmom.models.losses import LOSSES, Loss
from fedmom.models.metrics import Metric, check_names
from fedmom.models.nets import Net, arguments, beside_state
from fedmom.models.variables import StateChoice, Variables, divide, parameter_names, unite


@checked
def model(
    net: Any,
    data: FederatedData | Features,
    *,
    loss: str | Loss | None = None,
    metrics: Sequence[str | Metric | Callable[..., jax.Array]] | None = None,
    state: StateChoice = "average",
    has_state: bool = False,
    convert: bool = True,
) -> Model:
    """Make a model of a net of PyTorch, flax, equinox or haiku, or of two plain functions.

    Dropout and batch norm work as the library has them: the net is told whether it is trained, by
    the argument ``train``, ``training``, ``is_training`` or ``deterministic`` if it has one, by
    ``train()`` and ``eval()`` of flax.nnx and by ``inference_mode`` of equinox.

    A PyTorch module becomes JAX functions, once: docs/torch.md. Its weights are the first
    parameters, whatever the seed; those without ``requires_grad`` are frozen.

    Args:
        net: A ``torch.nn.Module``. A ``flax.linen`` module. A function of ``nnx.Rngs`` that makes a
            ``flax.nnx`` module. A function of a key that makes an ``equinox`` module, or a module
            and its state; it is applied to one sample. What ``haiku.transform`` or
            ``transform_with_state`` returns. A pair of functions ``init(key) -> params`` and
            ``apply(params, x, key) -> outputs``. The name of a built-in model, to give it another
            loss or other metrics. An nnx or equinox module itself starts from the parameters that
            it has, whatever the seed.
        data: What it is trained on: the data, or its features.
        loss: ``loss(outputs, labels) ->`` one number per sample; or a pair, a sum and a count of
            terms per sample, of which the mean over terms is taken; or a name of
            ``fedmom.models.losses.LOSSES``; or a loss of PyTorch, such as
            ``torch.nn.CrossEntropyLoss(label_smoothing=0.1)``. By default, that of the data's task.
        metrics: Names of ``fedmom.METRICS``, ``fedmom.Metric`` values, or functions
            ``(outputs, labels) ->`` one number per sample, of which the mean is taken. Tables rank
            by the first that says whether higher is better, as a function does not. By default,
            those of the data's task.
        state: What becomes of state that is not trained, such as batch norm's running statistics.
            "average": it is sent, and the server takes the mean over clients, as in FedAvg.
            "local": layers that have state stay on each client as a whole, with their trained
            scale and shift, as in FedBN (Li et al. 2021).
        has_state: A pair of plain functions has state: ``init(key) -> params, state`` and
            ``apply(params, state, x, key) -> outputs, state``.
        convert: False leaves a PyTorch module what it is, for the runtime ``torch``.

    Returns:
        The model.

    Raises:
        FedMomError: The net is of no such library, or a name is unknown.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> def init(key):
        ...     return 0.01 * jax.random.normal(key, (60, 10))
        >>> net = model((init, lambda w, x, key: x @ w), data, metrics=["accuracy", "top:k=3"])
        >>> [metric.name for metric in net.metrics]
        ['accuracy', 'top3']
    """
    features = data.features if isinstance(data, FederatedData) else data
    if isinstance(net, str):
        if state == "local":
            raise FedMomError(f'state "local" is for nets that have state, and {net} has none.')
        found = build(net, features)
    else:
        found = of_net(net, features, example(data), state, has_state=has_state, convert=convert)
    own = pick(LOSSES, loss, "loss") if isinstance(loss, str) else loss
    if own is not None and "torch" in _homes(type(own)):
        from fedmom.models.torch.losses import converted

        own = converted(own, features)
    measured = found.metrics if metrics is None else _metrics(metrics)
    return found._replace(loss=own or found.loss, metrics=measured)


def of_net(
    net: Any,
    features: Features,
    x: NDArray[Any],
    state: StateChoice = "average",
    *,
    has_state: bool = False,
    convert: bool = True,
) -> Model:
    """Make a model of a net, with the loss and metrics of the data's task.

    Args:
        net: As for ``model``.
        features: What the model must accept.
        x: A batch of inputs, for its shape and type.
        state: As for ``model``.
        has_state: As for ``model``.
        convert: As for ``model``.
    """
    if not convert:
        return _unconverted(net, features, x, state)

    def made(x: NDArray[Any]) -> Model:
        return _model(_net(net, jnp.asarray(x), has_state=has_state), state)

    gray = features.kind == "image" and len(features.shape) == 2
    if _is_of_torch(net):
        found = _of_torch(net, x, state, images=features.kind == "image")
    else:
        found = with_channel(made, x) if gray else made(x)
    loss, metrics = TASKS[features.task]
    return found._replace(loss=loss, metrics=metrics)


def _is_of_torch(net: Any) -> bool:
    return not isinstance(net, type) and "torch" in _homes(type(net)) and callable(net)


def _of_torch(module: Any, x: NDArray[Any], state: StateChoice, *, images: bool) -> Model:
    """Make a model of a PyTorch module, of which parameters may be frozen."""
    from fedmom.models.nets import torch
    from fedmom.models.torch.export import convert

    converted = convert(module, x, images=images)
    found = _model(torch.net(converted), state)
    if not converted.frozen:
        return found
    form = first_form(found)
    trained = form.trained if isinstance(form, Variables) else form
    names = set(parameter_names(trained)) - {*converted.frozen}
    return frozen(found, train="|".join(map(glob.escape, sorted(names))))


def example(data: FederatedData | Features, *, integers: bool = False) -> NDArray[Any]:
    """Return a batch of one input, all zeros.

    Args:
        data: The data, or its features, which do not say whether inputs are whole numbers.
        integers: Of features: whether they are.
    """
    if isinstance(data, FederatedData):
        return example(data.features, integers=has_integers(data))
    whole = integers or data.kind == "text"
    return np.zeros((1, *data.shape), np.int32 if whole else np.float32)


def _unconverted(net: Any, features: Features, x: NDArray[Any], state: StateChoice) -> Model:
    """Return the model of a PyTorch module that stays what it is."""
    if "torch" not in _homes(type(net)):
        raise FedMomError(
            f"net is {short(net)}. The runtime torch, and convert=False, are for a torch.nn.Module."
        )
    if state != "average":
        raise FedMomError(
            f'state "{state}" is not for a module that is trained in PyTorch. Leave it out.'
        )
    from fedmom.models.torch_modules import of_module

    loss, metrics = TASKS[features.task]
    return of_module(net, features, x)._replace(loss=loss, metrics=metrics)


def has_integers(data: FederatedData) -> bool:
    """Return whether the inputs of a batch are whole numbers; bytes become floats."""
    dtype = data.arrays["x"].dtype if "x" in data.arrays else np.dtype(np.uint8)
    return bool(np.issubdtype(dtype, np.integer)) and dtype != np.uint8


def _net(net: Any, x: jax.Array, *, has_state: bool) -> Net:
    """Return a net of whatever library as two functions."""
    libraries = set() if isinstance(net, type) else _homes(type(net))  # of a class: see _made
    if "haiku" in libraries:
        from fedmom.models.nets import haiku

        return haiku.net(net, x)
    if isinstance(net, tuple) and len(net) == 2 and all(map(callable, net)):
        return _plain(*net, has_state=has_state)
    if "flax" in libraries:
        from fedmom.models.nets import flax

        return flax.net(net, x)
    if "equinox" in libraries:
        from fedmom.models.nets import equinox

        return equinox.net(lambda _key: net)
    if callable(net):
        return _made(net)
    raise FedMomError(
        f"net is {short(net)}. Give a PyTorch, flax, equinox or haiku net, or a pair of functions"
        " (init, apply): docs/models.md."
    )


def _homes(kind: type) -> set[str]:
    """Return the libraries that a class and those above it are from."""
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def _made(make: Callable[..., Any]) -> Net:
    """Return the net that a function or class makes: nnx asks for ``rngs``, equinox for a key."""
    inside: Any = make
    while isinstance(inside, partial):
        inside = inside.func
    # The classes of both libraries hide the signature that they have.
    of_class = isinstance(inside, type)
    if of_class and any(base.__module__.startswith("flax.linen") for base in inside.__mro__):
        raise FedMomError(f"{inside.__name__} is a class of linen. Give an instance of it.")
    if of_class and "torch" in _homes(inside):
        raise FedMomError(f"{inside.__name__} is a class of PyTorch. Give an instance of it.")
    if of_class and not {"flax", "equinox"} & _homes(inside):
        raise FedMomError(f"net is {short(make)}, which is not one of flax or equinox.")
    names = arguments(inside.__init__ if of_class else inside)
    if not (of_class or "rngs" in names or "key" in names or takes(make, 1)):
        raise FedMomError(
            f"net is {short(make)}, which takes neither a key nor rngs. A function makes a net of"
            " one of them; plain functions come as a pair (init, apply)."
        )
    if "rngs" in names:
        from fedmom.models.nets import flax

        return flax.nnx_net(lambda rngs: make(rngs=rngs))
    try:
        from fedmom.models.nets import equinox
    except ImportError:
        raise FedMomError(
            f"{short(make)} would make an equinox module of a key, and equinox is not installed. A"
            " function that makes an nnx module has an argument rngs; plain functions come as a"
            " pair (init, apply)."
        ) from None
    return equinox.net(lambda key: make(key=key) if "key" in names else make(key))


def _plain(init: Callable[..., Any], apply: Callable[..., Any], *, has_state: bool) -> Net:
    if has_state:

        def both(key: jax.Array) -> Any:
            made = init(key)
            if not (isinstance(made, tuple) and len(made) == 2):
                raise FedMomError(
                    f"has_state is True, and init returns {short(made)}. It must return parameters"
                    " and state."
                )
            return made

        return Net(both, apply, beside_state)
    return Net(
        lambda key: (init(key), ()), lambda p, s, x, key: (apply(p, x, key), s), beside_state
    )


def _model(net: Net, choice: StateChoice) -> Model:
    params, state = of_numbers("The net's init returns", traced(net.init, jax.random.key(0)))
    if jax.tree.leaves(state):
        return _averaged(net) if choice == "average" else _local(net, net.norms(params, state))
    if choice == "local":
        raise FedMomError(
            'state "local" is for nets that have state, such as batch norm; this one has none.'
        )
    return Model(
        lambda key: net.init(key)[0],
        lambda params, x, key: net.apply(params, state, x, key)[0],
    )


def _averaged(net: Net) -> Model:
    def train(variables: Variables, x: jax.Array, key: jax.Array) -> tuple[jax.Array, Any, Any]:
        return *net.apply(variables.trained, variables.state, x, key), None

    return Model(
        lambda key: Variables(*net.init(key)),
        lambda variables, x, key: net.apply(variables.trained, variables.state, x, key)[0],
        train=train,
        state="average",
    )


def _local(net: Net, own: Params) -> Model:
    """The layers that have state stay on the client, and with them the parameters marked own."""

    def init(key: jax.Array) -> Variables:
        params, state = net.init(key)
        shared, kept = divide(params, own)
        return Variables(shared, None, kept, state)

    def train(
        variables: Variables, x: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, Any, Any]:
        params = unite(variables.trained, variables.own_trained)
        outputs, state = net.apply(params, variables.own_state, x, key)
        return outputs, None, state

    return Model(init, lambda v, x, key: train(v, x, key)[0], train=train, state="local")


def _metrics(metrics: Sequence[str | Metric | Callable[..., jax.Array]]) -> tuple[Metric, ...]:
    found = tuple(_metric(metric) for metric in metrics)
    check_names(found)
    return found


def _metric(metric: str | Metric | Callable[..., jax.Array]) -> Metric:
    if isinstance(metric, str):
        return METRICS.build(metric)
    name = getattr(metric, "__name__", type(metric).__name__)
    return metric if isinstance(metric, Metric) else Metric(name, metric)
