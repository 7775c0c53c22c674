"""What a model is here: a pair of pure functions, the loss of one sample, and metrics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked_class, short
from fedmom.core.errors import FedMomError
from fedmom.core.prng import centred_uniform, is_key
from fedmom.core.tracing import is_numeric, of_numbers, traced
from fedmom.core.types import Params
from fedmom.data.federated import Features
from fedmom.models import metrics
from fedmom.models.losses import (
    Loss,
    binary_cross_entropy,
    cross_entropy,
    sequence_cross_entropy,
    squared_error,
)
from fedmom.models.metrics import Metric
from fedmom.models.variables import StateChoice, Variables, Whole

# What a model is trained and evaluated with, unless it says otherwise, by the data's task.
TASKS: dict[str, tuple[Loss, tuple[Metric, ...]]] = {
    "classes": (cross_entropy, (metrics.accuracy(),)),
    "regression": (squared_error, (metrics.mse(), metrics.mae())),
    "multilabel": (binary_cross_entropy, (metrics.f1(average="micro"), metrics.f1())),
    "sequence": (sequence_cross_entropy, (metrics.position_accuracy(), metrics.perplexity())),
}
# The rows of the batch that a model is tried on: a loss per sample differs from a mean over them.
ROWS = 2


@checked_class
class Model(NamedTuple):
    """A model: how its first parameters are drawn, how it is applied, its loss and metrics.

    ``fedmom.model`` makes one of a net of PyTorch, flax, equinox or haiku.

    Args:
        init: ``init(key) -> params``, any tree of arrays; ``Variables`` where there is state;
            ``Adapted`` where a part of the parameters is frozen.
        apply: ``apply(params, x, key) -> outputs`` of a batch. ``key`` is for dropout and the
            like; it is None in evaluation.
        loss: ``loss(outputs, labels) ->`` one number per sample, or a sum and a count of terms per
            sample; by default ``cross_entropy``.
        metrics: What it is evaluated by, next to the loss; the first is what tables rank by. By
            default the accuracy.
        train: ``train(variables, x, key) -> outputs, state, own_state``: how a model with state
            is applied in training.
        state: What becomes of its state: "average" or "local"; None: it has none.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> net = Model(
        ...     init=lambda key: jnp.zeros((4, 3)),
        ...     apply=lambda params, x, key: x @ params,
        ... )
        >>> params = net.init(jax.random.key(0))
        >>> net.apply(params, jnp.ones((5, 4)), None).shape
        (5, 3)
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array, jax.Array | None], jax.Array]
    loss: Loss = cross_entropy
    metrics: tuple[Metric, ...] = TASKS["classes"][1]
    train: Callable[[Variables, jax.Array, jax.Array], tuple[jax.Array, Any, Any]] | None = None
    state: StateChoice | None = None

    @property
    def adapted(self) -> "Adapted | None":
        """What is frozen of the model, if anything is."""
        return self.init if isinstance(self.init, Adapted) else None

    @property
    def plain(self) -> "Model":
        """The model with all of its parameters, without a frozen part."""
        return self if self.adapted is None else self.adapted.base

    def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the loss of every sample: of a sequence, the mean over its positions.

        Args:
            outputs: The model's outputs, one row per sample.
            labels: The samples' labels.

        Returns:
            One number per sample.
        """
        found, counts = self.loss_sums(outputs, labels)
        return found if counts is None else found / jnp.maximum(counts, 1)

    def loss_sums(
        self, outputs: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the loss of every sample as a sum and a count of terms, such as positions.

        The loss of samples together is the mean over their terms. A loss that is a mean over the
        batch is refused.

        Args:
            outputs: The model's outputs, one row per sample.
            labels: The samples' labels.

        Returns:
            The sums, and the counts; None where each sample counts one.
        """
        found = self.loss(outputs, labels)
        if isinstance(found, tuple) and len(found) == 2:
            sums, counts = (self._per_sample(each, labels) for each in found)
            return sums, counts
        return self._per_sample(found, labels), None

    def _per_sample(self, found: Any, labels: jax.Array) -> jax.Array:
        shape = getattr(found, "shape", None)
        if not is_numeric(found) or shape is None:
            raise FedMomError(
                f"The model's loss returns {short(found)}. It must return one number per sample."
            )
        if shape != labels.shape[:1]:
            raise FedMomError(
                f"The model's loss has shape {shape} for {len(labels)} samples. A loss"
                " returns one number per sample: leave out the mean over the batch."
            )
        return jnp.asarray(found)


@dataclass(frozen=True, eq=False)
class Adapted:
    """The ``init`` of a model of which a part is frozen: it draws what is trained.

    ``fedmom.lora`` and ``fedmom.frozen`` make one. Such a model is applied to ``Whole`` parameters.

    Args:
        base: The model as it was.
        init: ``init(key)``: what is trained, and the state.
        frozen: ``frozen(key)``: the parameters that are not trained, nor sent. They follow from the
            model and the seed, so every machine has them.
        merge: ``merge(trained, frozen)``: the parameters of ``base``.

    Examples:
        >>> base = Model(lambda key: jnp.ones(3), lambda w, x, key: x @ w)
        >>> half = Adapted(base, lambda key: jnp.ones(1), lambda key: jnp.ones(2), jnp.append)
        >>> half.merged(Whole(half(None), half.frozen(None))).shape
        (3,)
    """

    base: Model
    init: Callable[[jax.Array], Any]
    frozen: Callable[[jax.Array], Params]
    merge: Callable[[Params, Params], Params]

    def __call__(self, key: jax.Array) -> Any:
        """Return the first parameters, of what is trained."""
        return self.init(key)

    def merged(self, whole: Whole) -> Any:
        """Return the parameters of ``base``; a pure function, for programs and for export.

        Args:
            whole: What is trained, and what is frozen.
        """
        params, frozen = whole
        if isinstance(params, Variables):
            return params._replace(trained=self.merge(params.trained, frozen))
        return self.merge(params, frozen)


def fitted(model: Model, features: Features) -> Model:
    """Return a model with the loss and metrics of the data's task, unless it has its own."""
    plain = TASKS["classes"]
    if features.task == "classes" or (model.loss, model.metrics) != plain:
        return model
    loss, measured = TASKS[features.task]
    return model._replace(loss=loss, metrics=measured)


def check(model: Model, features: Features, x: NDArray[Any]) -> None:
    """Refuse a model that cannot be applied to the data, or whose outputs its loss cannot use.

    Args:
        model: The model.
        features: What it must accept and predict.
        x: A batch of one input.

    Raises:
        FedMomError: It does not fit.

    Examples:
        >>> net = Model(lambda key: jnp.zeros((4, 3)), lambda w, x, key: x @ w)
        >>> check(net, Features("vector", (4,), 5), np.zeros((1, 4), np.float32))
        Traceback (most recent call last):
        ...
        fedmom.core.errors.FedMomError: The data has 5 classes, and the model's outputs have \
size 3. Its last layer must return a number for every class.
    """
    batch = np.repeat(x, ROWS, axis=0)
    params = first_form(model)
    try:
        outputs = traced(lambda p, x: model.apply(p, x, None), params, batch)
    except FedMomError:
        raise
    except Exception as error:
        raise FedMomError(
            f"The model cannot be applied to a batch of {ROWS} inputs of shape {x.shape[1:]}"
            f" ({x.dtype}): {str(error).rstrip('.')}. A model's apply takes parameters, inputs and"
            " a key."
        ) from error
    if not is_numeric(outputs) or not hasattr(outputs, "shape"):
        raise FedMomError(
            f"apply of the model returns {short(outputs)}. It must return an array, with a row for"
            " every input."
        )
    if model.loss in (cross_entropy, sequence_cross_entropy):
        _check_classes(outputs, features)
    jax.eval_shape(model.losses, outputs, _labels(features))
    for metric in model.metrics:
        if metric.inputs is not None:
            other = traced(metric.inputs, batch)
            if not is_numeric(other) or getattr(other, "shape", None) != batch.shape:
                raise FedMomError(
                    f"inputs of the metric {metric.name} returns {short(other)}. It must return"
                    " inputs of the shape that it is given."
                )
        _check_metric(metric, outputs, _labels(features))


def first_form(model: Model) -> Any:
    """Return the shapes of the first parameters; a function that JAX cannot trace is called."""
    key = jax.random.key(0)
    try:
        found = traced(model.init, key)
    except jax.errors.JAXTypeError:
        found = model.init(key)
    params = of_numbers("init of the model returns", found)
    if isinstance(params, Variables) != (model.train is not None and model.state is not None):
        raise FedMomError(
            "A model with state has all of these, one without has none: train, state ('average' or"
            f" 'local'), and an init that returns fedmom.Variables. Here init returns"
            f" {short(found)}, state is {model.state!r}, and train is {short(model.train)}."
        )
    trained = params.trained if isinstance(params, Variables) else params
    if not jax.tree.leaves(trained):
        raise FedMomError(
            f"init of the model returns {short(found)}. It must return parameters, which are"
            " trained: an array, or lists, tuples and dicts of arrays."
        )
    if any(map(is_key, jax.tree.leaves(params))):
        raise FedMomError(
            "The model's state has a random key, which cannot be averaged or kept. Leave it out:"
            " apply is given a key."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise FedMomError(
                f"The model's parameter{jax.tree_util.keystr(path)} is {leaf.dtype}. Parameters"
                " are trained, so they must be floats."
            )
    return params


def _check_metric(metric: Metric, outputs: Any, labels: NDArray[Any]) -> None:
    """Refuse a metric of the user's own that does not return a number, or a row, per sample."""
    found = traced(metric.per_sample, outputs, labels)
    shape = getattr(found, "shape", ()) if is_numeric(found) else ()
    if shape[:1] != (ROWS,) or len(shape) > 2 or jnp.issubdtype(found.dtype, jnp.complexfloating):
        raise FedMomError(
            f"The metric {metric.name} returns {short(found)} for {ROWS} samples. It must return"
            " one number per sample, or one row of numbers."
        )
    if metric.value is None:
        if len(shape) > 1:
            raise FedMomError(
                f"The metric {metric.name} returns a row of numbers for a sample, and has no value:"
                " a function that makes a number of the sums of such rows."
            )
        return
    for sums in (np.ones((ROWS, *shape[1:])), np.ones(shape[1:])):
        value = metric.value(sums)
        wanted = sums.shape[: sums.ndim - len(shape[1:])]
        if not is_numeric(value) or np.shape(value) != wanted:
            raise FedMomError(
                f"value of the metric {metric.name} returns {short(value)} for sums of shape"
                f" {sums.shape}. It must return one number for every row."
            )


def _check_classes(outputs: Any, features: Features) -> None:
    places = () if features.task == "classes" else features.shape[:1]
    if outputs.shape[:-1] != (ROWS, *places):
        wanted = (ROWS, *places, features.classes)
        raise FedMomError(
            f"The model returns an array of shape {outputs.shape} for {ROWS} inputs. For"
            f" {features.classes} classes it must be {wanted}: a number for every class."
        )
    if outputs.shape[-1] < features.classes:
        raise FedMomError(
            f"The data has {features.classes} classes, and the model's outputs have size"
            f" {outputs.shape[-1]}. Its last layer must return a number for every class."
        )


def _labels(features: Features) -> NDArray[Any]:
    """Return labels of a batch, all zeros."""
    shapes = {"classes": (), "sequence": features.shape[:1]}
    shape = shapes.get(features.task, (features.classes,))
    dtype = np.float32 if features.task == "regression" else np.int32
    return np.zeros((ROWS, *shape), dtype)


def glorot_uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw as ``jax.nn.initializers.glorot_uniform`` does, with nothing to compile."""
    field = math.prod(shape[:-2])  # of a convolution
    variance = np.float32(1 / (field * (shape[-2] + shape[-1]) / 2))
    return jax.device_put(centred_uniform(key, shape) * np.sqrt(np.float32(3) * variance))


def drawn(key: jax.Array, *shape: int) -> Params:
    """A layer with Glorot-uniform weights and zero bias.

    Its shape is (inputs, outputs), or (side, side, channels, filters) of a convolution.
    """
    return {"w": glorot_uniform(key, shape), "b": jax.device_put(np.zeros(shape[-1], np.float32))}


def linear(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer."""
    return x @ layer["w"] + layer["b"]


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Drop units at ``rate`` and scale the rest up; nothing without a key."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def as_channels(x: jax.Array) -> jax.Array:
    """Give gray images (N, H, W) their channel; leave (N, H, W, C) alone.

    Pixels that a user has given as whole numbers become floats, as convolutions want them.
    """
    x = x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.integer) else x
    return x[..., None] if x.ndim == 3 else x


def need(model: str, features: Features, kinds: Sequence[str]) -> None:
    """Refuse data that the model cannot read."""
    if features.kind not in kinds:
        shape = "x".join(map(str, features.shape))
        raise FedMomError(
            f"{model} reads {' or '.join(kinds)} data, but this data is {features.kind} ({shape})."
            f" `fedmom list` shows which model reads what."
        )
    if features.task == "sequence":
        raise FedMomError(
            f"{model} returns one label per input, and this data has one at every position. Give"
            " a net of your own, which does: fedmom.model (docs/models.md)."
        )


def compiled_quickly(init: Callable[[jax.Array], Params]) -> Callable[[jax.Array], Params]:
    """Compile the drawing of first parameters as one program, with little optimization.

    It runs once. (With no optimization at all, the orthogonal matrix has other numbers.)
    """
    compiled = jax.jit(init, compiler_options={"xla_backend_optimization_level": 1})

    def draw(key: jax.Array) -> Params:
        # A program inside another has no options of its own.
        return init(key) if isinstance(key, jax.core.Tracer) else compiled(key)

    return draw
