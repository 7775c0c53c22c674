"""Local training in PyTorch: what ``fedmom.algorithms.client`` does in JAX, step by step."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmom.core.threefry import Words
from fedmom.models import torch_calls
from fedmom.models.torch_calls import Channels
from fedmom.runtimes.pytorch.batches import Batches, Part
from fedmom.runtimes.pytorch.solvers import SOLVERS, Step

Tensors = list[torch.Tensor]


class Work(NamedTuple):
    """What clients do with the module, in all rounds.

    Args:
        batches: How their batches are drawn.
        loss: The name of the loss.
        solver: The name of the solver, and its options.
        prox: FedProx's μ.
    """

    batches: Batches
    loss: str
    solver: tuple[str, dict[str, Any]]
    prox: float


class TorchSamples:
    """The samples of all clients; a position gives one, as in ``fedmom.data.batches``.

    Args:
        arrays: "x" and "y", or "text"; and "at".
        window: The symbols in an input of text.
        channels: Where the channels of images are.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], window: int, channels: Channels) -> None:
        self._arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self._window, self._channels = torch.arange(window + 1), channels

    def read(self, positions: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of samples."""
        arrays, places = self._arrays, torch.from_numpy(positions)
        places = arrays["at"][places].long() if "at" in arrays else places
        if "text" in arrays:
            windows = arrays["text"][places.unsqueeze(1) + self._window].long()
            return windows[:, :-1], windows[:, -1]
        x, y = arrays["x"].index_select(0, places), arrays["y"].index_select(0, places)
        return torch_calls.given(_numbers(x), self._channels), _labels(y)


def _numbers(x: torch.Tensor) -> torch.Tensor:
    """Bytes are images and become floats in [0, 1]; other whole numbers stay whole."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x.long()


def _labels(y: torch.Tensor) -> torch.Tensor:
    return y.float() if y.is_floating_point() else y.long()


class Trainer:
    """Trains one module for one client after another.

    Args:
        module: The module.
        names: Its parameters that are trained.
        work: What clients do.
        samples: Those of all clients.
    """

    def __init__(
        self, module: torch.nn.Module, names: Sequence[str], work: Work, samples: TorchSamples
    ) -> None:
        has = dict(module.named_parameters())
        self.params: Tensors = [has[name] for name in names]
        self._module, self._work, self._samples = module, work, samples
        self._loss = torch_calls.LOSSES[work.loss]

    def train(self, words: Words, start: int, size: int, steps: int, lr: float) -> float:
        """Train the module as it is now; return the mean loss over the steps.

        Args:
            words: The client's key in the round.
            start: The position of its first sample.
            size: n_k.
            steps: H.
            lr: γ in this round.
        """
        seed(words)
        self._module.train()
        name, options = self._work.solver
        begun = [p.detach().clone() for p in self.params] if self._work.prox else []
        step = SOLVERS[name]([p.detach() for p in self.params], lr, **options)
        total: Any = 0.0
        for parts in self._work.batches.of(words, size, steps):
            total = total + self._descend(start, parts, begun, step)
        return float(total / steps)

    def _descend(
        self, start: int, parts: Sequence[Part], begun: Tensors, step: Step
    ) -> torch.Tensor:
        """Take a step; the next one has the gradient's memory again, which is in the cache."""
        loss, gradient = self._gradient(start, parts)
        if begun:
            away = torch._foreach_sub([p.detach() for p in self.params], begun)
            gradient = torch._foreach_add(gradient, away, alpha=self._work.prox)
        step(gradient)
        return loss

    def outputs(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the outputs of the module for samples, as in evaluation."""
        self._module.eval()
        with torch.inference_mode():
            x, _ = self._samples.read(positions)
            return torch_calls.outputs(self._module, x).float().numpy()

    def _gradient(self, start: int, parts: Sequence[Part]) -> tuple[torch.Tensor, Tensors]:
        """Return the mean loss of a batch and its gradient, computed part by part."""
        if len(parts) == 1:
            loss, count = self._loss_sum(start, parts[0])
            return loss.detach() / count, self._derived(loss, 1 / count)
        total, terms, gradient = torch.zeros(()), 0, [torch.zeros_like(p) for p in self.params]
        for part in parts:
            loss, count = self._loss_sum(start, part)
            torch._foreach_add_(gradient, self._derived(loss))
            total, terms = total + loss.detach(), terms + count
        return total / terms, list(torch._foreach_div(gradient, terms))

    def _loss_sum(self, start: int, part: Part) -> torch_calls.LossSum:
        x, y = self._samples.read(start + part.rows)
        outputs = torch_calls.outputs(self._module, x)
        if part.real < len(part.rows):
            outputs, y = outputs[: part.real], y[: part.real]
        return self._loss(outputs, y)

    def _derived(self, loss: torch.Tensor, scale: float = 1.0) -> Tensors:
        """Return a multiple of the gradient; zeros for parameters that this batch has not used."""
        outer = torch.full_like(loss, scale)
        found = torch.autograd.grad(loss, self.params, outer, allow_unused=True)
        pairs = zip(found, self.params, strict=True)
        return [torch.zeros_like(p) if g is None else g for g, p in pairs]


def seed(words: Words) -> None:
    """Seed all that a module may draw from, such as for dropout."""
    high, low = words.reshape(-1).tolist()
    torch.default_generator.manual_seed(high << 32 | low)
    np.random.seed([high, low])
    random.seed(high << 32 | low)
