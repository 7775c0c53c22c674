"""Client optimizers in PyTorch: those of ``fedmom.algorithms.solvers``, by the same formulas.

Their options mean what they mean there, and are checked there.
"""

from collections.abc import Callable
from typing import Any

import torch

Tensors = list[torch.Tensor]
Step = Callable[[Tensors], Any]  # of a gradient; it changes the parameters


def sgd(
    params: Tensors,
    lr: float,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    dampening: float = 0.0,
) -> Step:
    """SGD, with momentum or without."""
    trace = _zeros(params) if momentum else []
    scale = 1.0  # of the gradient in the trace: that of the first step is not damped

    def step(gradient: Tensors) -> None:
        nonlocal scale
        gradient = _decayed(gradient, params, weight_decay)
        if momentum:
            torch._foreach_mul_(trace, momentum)
            torch._foreach_add_(trace, gradient, alpha=scale)
            scale = 1 - dampening
            ahead = torch._foreach_add(gradient, trace, alpha=momentum) if nesterov else trace
            gradient = list(ahead)
        torch._foreach_add_(params, gradient, alpha=-lr)

    return step


def momentum(params: Tensors, lr: float) -> Step:
    """SGD with momentum 0.9."""
    return sgd(params, lr, momentum=0.9)


def rmsprop(
    params: Tensors,
    lr: float,
    *,
    decay: float = 0.9,
    eps: float = 1e-8,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Step:
    """RMSProp."""
    squares, means = _zeros(params), _zeros(params) if centered else []
    trace = _zeros(params) if momentum else []

    def step(gradient: Tensors) -> None:
        gradient = _decayed(gradient, params, weight_decay)
        torch._foreach_mul_(squares, decay)
        torch._foreach_addcmul_(squares, gradient, gradient, 1 - decay)
        spread = squares
        if centered:
            torch._foreach_lerp_(means, gradient, 1 - decay)
            spread = list(torch._foreach_addcmul(squares, means, means, -1))
        if eps_in_sqrt:
            roots = torch._foreach_sqrt(torch._foreach_add(spread, eps))
        else:
            roots = torch._foreach_add(torch._foreach_sqrt(spread), eps)
        if momentum:
            torch._foreach_mul_(trace, momentum)
            torch._foreach_addcdiv_(trace, gradient, roots)
            torch._foreach_add_(params, trace, alpha=-lr)
        else:
            torch._foreach_addcdiv_(params, gradient, roots, -lr)

    return step


def adam(
    params: Tensors,
    lr: float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Step:
    """Adam."""
    plain = adamw(params, lr, b1=b1, b2=b2, eps=eps, weight_decay=0.0)
    return lambda gradient: plain(_decayed(gradient, params, weight_decay))


def adamw(
    params: Tensors,
    lr: float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
) -> Step:
    """Adam with decoupled weight decay."""
    means, squares = _zeros(params), _zeros(params)
    taken = 0

    def step(gradient: Tensors) -> None:
        nonlocal taken
        taken += 1
        torch._foreach_lerp_(means, gradient, 1 - b1)
        torch._foreach_mul_(squares, b2)
        torch._foreach_addcmul_(squares, gradient, gradient, 1 - b2)
        roots = torch._foreach_sqrt(torch._foreach_div(squares, 1 - b2**taken))
        torch._foreach_add_(roots, eps)
        if weight_decay:
            torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_addcdiv_(params, means, roots, -lr / (1 - b1**taken))

    return step


def _zeros(params: Tensors) -> Tensors:
    return [torch.zeros_like(p) for p in params]


def _decayed(gradient: Tensors, params: Tensors, weight_decay: float) -> Tensors:
    """Return the gradient with ``weight_decay`` times the parameters."""
    if not weight_decay:
        return gradient
    return list(torch._foreach_add(gradient, params, alpha=weight_decay))


SOLVERS: dict[str, Callable[..., Step]] = {
    solver.__name__: solver for solver in (sgd, momentum, rmsprop, adam, adamw)
}
