"""The nets in PyTorch, and a client's work as a careful engineer writes it by hand."""

import numpy as np
import torch
import work as w
from torch import nn
from torch.nn import functional as F  # noqa: N812


class CNN(nn.Module):
    """LeNet-5 or LEAF's net: they differ in widths, in padding, and in LeNet's extra layer."""

    def __init__(self, channels, paddings, hidden):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels[0], 5, padding=paddings[0])
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5, padding=paddings[1])
        side = (w.PIXELS // 2 + 2 * paddings[1] - 4) // 2
        sizes = [channels[1] * side * side, *hidden, w.CLASSES]
        self.dense = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        for layer in self.dense[:-1]:
            x = F.relu(layer(x))
        return self.dense[-1](x)


class CharLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(w.SYMBOLS, w.EMBEDDING)
        self.lstm = nn.LSTM(w.EMBEDDING, w.HIDDEN, batch_first=True)
        self.out = nn.Linear(w.HIDDEN, w.SYMBOLS)

    def forward(self, x):
        _, (h, _) = self.lstm(self.embedding(x))
        return self.out(h[0])


def build(name):
    torch.manual_seed(0)
    if name == "lstm":
        return CharLSTM()
    net = CNN((6, 16), (2, 0), (120, 84)) if name == "lenet" else CNN((32, 64), (2, 2), (2048,))
    return net.to(memory_format=torch.channels_last)  # LeNet takes a sixth less time


def tensors(name):
    """All clients' samples; the text as overlapping views of itself."""
    x, y = w.samples(name)
    if name == "lstm":
        base = torch.from_numpy(w.texts(w.WORKS[name]))
        windows = base.unfold(1, w.LENGTH + 1, 1)
        return windows[..., :-1], windows[..., -1]
    return torch.from_numpy(np.require(x, requirements="W")), torch.from_numpy(y)


def batch(name, x, y, rows):
    """Bytes to what the net reads."""
    x, y = x[rows], y[rows].long()
    return (x.long() if name == "lstm" else x.unsqueeze(1).float().div_(255)), y


def flatten(net):
    """Lay all parameters side by side, so that a model is copied in one go."""
    flat = torch.empty(sum(p.numel() for p in net.parameters()))
    at = 0
    for p in net.parameters():
        piece = flat[at : at + p.numel()].as_strided(p.shape, p.stride(), at)
        p.data = piece.copy_(p.data)
        at += p.numel()
    if isinstance(net, CharLSTM):
        net.lstm.flatten_parameters()
    return flat


def options():
    """The command line, with what PyTorch's programs add to it."""
    return w.arguments(lambda parser: parser.add_argument("--compile", action="store_true"))


def step_of(net, *, compiled):
    """Return a step of SGD on a batch: as PyTorch runs it line by line, or compiled as a whole."""
    return compiled_step(net) if compiled else plain_step(net)


def plain_step(net):
    parameters = list(net.parameters())

    def step(inputs, labels):
        loss = F.cross_entropy(net(inputs), labels)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-w.LR)

    return step


def compiled_step(net):
    """Loss, gradient and update in one graph: the loss alone takes longer than uncompiled."""
    weights = {name: p.detach() for name, p in net.named_parameters()}  # in the net's memory

    def loss(weights, inputs, labels):
        return F.cross_entropy(torch.func.functional_call(net, weights, (inputs,)), labels)

    def step(inputs, labels):
        gradients = torch.func.grad(loss)(weights, inputs, labels)
        torch._foreach_add_(
            list(weights.values()), [gradients[name] for name in weights], alpha=-w.LR
        )

    return torch.compile(step)


def train_client(name, step, x, y):
    """H steps of SGD on random batches of one client."""
    for rows in torch.randint(len(y), (w.WORKS[name].steps, w.BATCH)):
        step(*batch(name, x, y, rows))
