"""Client optimizers in PyTorch, by the formulas of those that optax has.

Those of ``torch.optim`` differ: its RMSProp adds eps outside of the root.
"""

from collections.abc import Callable
from typing import Any

import torch

Tensors = list[torch.Tensor]
Step = Callable[[Tensors], Any]  # of a gradient; it changes the parameters


def sgd(params: Tensors, lr: float, *, momentum: float = 0.0, nesterov: bool = False) -> Step:
    """SGD, with momentum or without."""
    trace = [torch.zeros_like(p) for p in params] if momentum else []

    def step(gradient: Tensors) -> None:
        if momentum:
            torch._foreach_mul_(trace, momentum)
            torch._foreach_add_(trace, gradient)
            ahead = torch._foreach_add(gradient, trace, alpha=momentum) if nesterov else trace
            gradient = list(ahead)
        torch._foreach_add_(params, gradient, alpha=-lr)

    return step


def momentum(params: Tensors, lr: float) -> Step:
    """SGD with momentum 0.9."""
    return sgd(params, lr, momentum=0.9)


def rmsprop(params: Tensors, lr: float, *, decay: float = 0.9, eps: float = 1e-8) -> Step:
    """RMSProp."""
    squares = [torch.zeros_like(p) for p in params]

    def step(gradient: Tensors) -> None:
        torch._foreach_mul_(squares, decay)
        torch._foreach_addcmul_(squares, gradient, gradient, 1 - decay)
        roots = torch._foreach_sqrt(torch._foreach_add(squares, eps))
        torch._foreach_addcdiv_(params, gradient, roots, -lr)

    return step


def adam(
    params: Tensors, lr: float, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Step:
    """Adam."""
    return adamw(params, lr, b1=b1, b2=b2, eps=eps, weight_decay=0.0)


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
    means = [torch.zeros_like(p) for p in params]
    squares = [torch.zeros_like(p) for p in params]
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


SOLVERS: dict[str, Callable[..., Step]] = {
    solver.__name__: solver for solver in (sgd, momentum, rmsprop, adam, adamw)
}
