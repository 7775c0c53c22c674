"""PyTorch's optimizers as client optimizers: by the name and options that the same one has here."""

import inspect
from functools import partial
from typing import Any

from fedmom.algorithms import SOLVERS
from fedmom.core.errors import FedMomError
from fedmom.core.registry import options, options_of

# By PyTorch's name: ours, and our names of the options; betas are two.
_KNOWN = {
    "SGD": ("sgd", {"momentum", "nesterov", "weight_decay", "dampening"}),
    "Adam": ("adam", {"betas", "eps", "weight_decay"}),
    "AdamW": ("adamw", {"betas", "eps", "weight_decay"}),
    "RMSprop": ("rmsprop", {"alpha", "eps", "centered", "momentum", "weight_decay"}),
}
# They change how fast a step is computed, and not its result.
_IGNORED = {"capturable", "differentiable", "foreach", "fused"}
_EXAMPLE = "functools.partial(torch.optim.SGD, momentum=0.9)"


def spec_of(value: Any) -> str | None:
    """Return the spec of a client optimizer for one of PyTorch; None for anything else.

    Args:
        value: A class of ``torch.optim``, or a partial of one with its options.

    Raises:
        FedMomError: It is another optimizer of PyTorch, or has options that are not known here.

    Examples:
        >>> spec_of("sgd") is None
        True
    """
    kind, given = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
    if not isinstance(kind, type):
        if _is_of_torch(type(value)):
            raise FedMomError(
                f"solver is an optimizer of one PyTorch model. Give its class: {_EXAMPLE}. The"
                " learning rate is the setting lr."
            )
        return None
    if not _is_of_torch(kind):
        return None
    name = kind.__name__
    if name not in _KNOWN or not kind.__module__.startswith("torch.optim"):
        raise FedMomError(
            f"solver is the PyTorch optimizer {name}. Those that FedMom has are"
            f" {', '.join(_KNOWN)}; or give one of optax."
        )
    ours, known = _KNOWN[name]
    _check(name, known, given)
    defaults = {n: p.default for n, p in inspect.signature(kind).parameters.items() if n in known}
    return _spec(ours, _renamed({**defaults, **{n: v for n, v in given.items() if n in known}}))


def ours(value: Any) -> Any:
    """Return the client optimizer for one of PyTorch; anything else as it is."""
    if (spec := spec_of(value)) is None:
        return value
    function = SOLVERS.find(spec)
    return partial(function, **options(function, spec))


def _is_of_torch(kind: type) -> bool:
    return any(base.__module__.startswith("torch.optim") for base in kind.__mro__)


def _check(name: str, known: set[str], given: dict[str, Any]) -> None:
    """Refuse options that change a step in a way that is not known here."""
    if "lr" in given:
        raise FedMomError(f"solver: leave lr out of {name}. It is a setting of its own.")
    unknown = [n for n, v in given.items() if n not in known | _IGNORED and v not in (False, None)]
    if unknown:
        raise FedMomError(
            f"solver: the option {unknown[0]}={given[unknown[0]]!r} of torch.optim.{name} is not"
            f" one that FedMom has. It has: {', '.join(sorted(known))}."
        )


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    if "betas" in values:
        values["b1"], values["b2"] = values.pop("betas")
    if "alpha" in values:
        values |= {"decay": values.pop("alpha"), "eps_in_sqrt": False}
    return values


def _spec(name: str, values: dict[str, Any]) -> str:
    """Return a spec that says what differs from our own defaults."""
    ours = options_of(SOLVERS[name])
    different = {n: v for n, v in values.items() if v != ours[n].default}
    text = ",".join(f"{n}={v}" for n, v in sorted(different.items()))
    return f"{name}:{text}" if text else name
