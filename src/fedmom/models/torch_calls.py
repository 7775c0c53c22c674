"""How a PyTorch module is called: its inputs, outputs and losses. Nothing here needs JAX."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.nn import functional as F  # noqa: N812

Channels = Literal["last", "absent", "none"]  # of the data's images: "none" are left as they are
LossSum = tuple[torch.Tensor, Any]  # over samples, and how many terms it has
Loss = Callable[[torch.Tensor, torch.Tensor], LossSum]


def given(x: torch.Tensor, channels: Channels) -> torch.Tensor:
    """Return a batch of inputs as PyTorch has them: the channels of images come first.

    Args:
        x: The batch as FedMom has it: images are (N, height, width), or with channels behind them.
        channels: Where the channels are; "absent" adds an axis of one channel.
    """
    if channels == "last":
        return x.permute(0, 3, 1, 2)
    return x.unsqueeze(1) if channels == "absent" else x


def outputs(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Apply a module; of what Hugging Face's models return, the logits count."""
    found = module(x)
    return found if isinstance(found, torch.Tensor) else getattr(found, "logits", found)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> LossSum:
    """As ``fedmom.models.losses.cross_entropy``, summed over samples; so are those below."""
    return F.cross_entropy(outputs, labels, reduction="sum"), len(labels)


def squared_error(outputs: torch.Tensor, values: torch.Tensor) -> LossSum:
    """The sum over samples of a mean over each one's values."""
    return _mean_of_rest((outputs.reshape(values.shape) - values).square()), len(values)


def absolute_error(outputs: torch.Tensor, values: torch.Tensor) -> LossSum:
    """The sum over samples of a mean over each one's values."""
    return _mean_of_rest((outputs.reshape(values.shape) - values).abs()), len(values)


def binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> LossSum:
    """The sum over samples of a mean over each one's labels."""
    labels = labels.to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(
        logits.reshape(labels.shape), labels, reduction="none"
    )
    return _mean_of_rest(losses), len(labels)


def sequence_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> LossSum:
    """The sum over positions that count, and how many there are."""
    labels = torch.where(labels < 0, -100, labels).flatten()
    total = F.cross_entropy(logits.flatten(0, -2), labels, reduction="sum", ignore_index=-100)
    return total, max(1, int((labels >= 0).sum()))


def _mean_of_rest(values: torch.Tensor) -> torch.Tensor:
    return values.sum() / max(1, values[0].numel())


LOSSES: dict[str, Loss] = {
    loss.__name__: loss
    for loss in (
        cross_entropy,
        squared_error,
        absolute_error,
        binary_cross_entropy,
        sequence_cross_entropy,
    )
}
