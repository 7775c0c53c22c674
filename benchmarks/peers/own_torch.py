"""The nets of own_flax.py in PyTorch, trained by hand: two processes of one thread each.

Models are in shared memory, the parameters of each side by side; SGD's step is one call. Images
are laid out with the channels first or last, whichever took less time in a round of each.
"""

import itertools
import multiprocessing
import time

import numpy as np
import own_work as w
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

WORKERS = 2


class MLP(nn.Sequential):
    def __init__(self):
        layers = nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 62)
        super().__init__(nn.Flatten(), *layers)


class CNN(nn.Sequential):
    def __init__(self, filters, flat, hidden, classes):
        layers = []
        for i, (before, after) in enumerate(itertools.pairwise(filters)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if i < 2 else []
        layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
        super().__init__(*layers)


def conv(before, after, side, stride=1, groups=1):
    """A convolution and group norm."""
    layer = nn.Conv2d(before, after, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.GroupNorm(8, after))


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = conv(before, after, 3, stride)
        self.second = conv(after, after, 3)
        self.short = nn.Identity() if before == after else conv(before, after, 1, stride)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


class Head(nn.Sequential):
    """The mean over pixels, and a dense layer."""

    def __init__(self, channels):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def resnet20():
    widths = [16, *(width for width in (16, 32, 64) for _ in range(3))]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(conv(3, 16, 3), nn.ReLU(), *blocks, Head(64))


def mobilenet():
    layers, before = [conv(3, 32, 3), nn.ReLU()], 32
    for after, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers += [conv(before, before, 3, stride, groups=before), nn.ReLU()]
        layers += [conv(before, after, 1), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, Head(256))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(w.SYMBOLS, 8)
        self.lstm = nn.LSTM(8, 128, batch_first=True)
        self.out = nn.Linear(128, w.SYMBOLS)

    def forward(self, x):
        _, (h, _) = self.lstm(self.embedding(x))
        return self.out(h[0])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(128), nn.LayerNorm(128)])
        self.qkv, self.after = nn.Linear(128, 3 * 128), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        heads = (*x.shape[:2], 4, 32)
        parts = self.qkv(self.norms[0](x)).split(128, 2)
        q, k, v = (part.view(heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.after(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(w.SYMBOLS, 128), nn.Embedding(128, 128)
        self.layers = nn.Sequential(*(Layer() for _ in range(4)))
        self.norm, self.out = nn.LayerNorm(128), nn.Linear(128, w.SYMBOLS)

    def forward(self, x):
        x = self.layers(self.symbols(x) + self.places(torch.arange(x.shape[1])))
        return self.out(self.norm(x)[:, -1])


NETS = {
    "mlp": MLP,
    "cnn28": lambda: CNN((1, 32, 64), 3136, 128, 62),
    "cnn32": lambda: CNN((3, 32, 64, 64), 4096, 64, 10),
    "resnet20": resnet20,
    "mobilenet": mobilenet,
    "lstm": LSTM,
    "transformer": Transformer,
}


class Client:
    """A net, and a client's epoch with it."""

    def __init__(self, name, batch, layout):
        torch.manual_seed(0)
        self.net = NETS[name]().to(memory_format=layout)
        self.parameters = list(self.net.parameters())
        self.flat = torch.empty(sum(p.numel() for p in self.parameters))
        at = 0
        for p in self.parameters:  # views of one array; their order in memory is the layout's
            p.data = self.flat.as_strided(p.shape, p.stride(), at).copy_(p.data)
            at += p.numel()
        if name == "lstm":
            self.net.lstm.flatten_parameters()
        self.name, self.batch, self.layout = name, batch, layout

    def train(self, x, y):
        """H steps of SGD on random batches."""
        rows = torch.randint(len(y), (w.steps(self.name, self.batch) * self.batch,))
        x, y = x[rows], y[rows].split(self.batch)
        if w.WORKS[self.name].text:
            x = x.long()
        else:
            x = x.float().div_(255).contiguous(memory_format=self.layout)
        for inputs, labels in zip(x.split(self.batch), y, strict=True):
            loss = F.cross_entropy(self.net(inputs), labels)
            gradients = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, gradients, alpha=-w.LR)


def tensors(name):
    x, y = map(torch.from_numpy, w.samples(name))
    return x if w.WORKS[name].text else x.movedim(-1, 2).contiguous(), y


def serve(name, batch, layout, server, total, pipe):
    """Train the clients that come through the pipe; leave the sum of their models."""
    torch.set_num_threads(1)
    client, (x, y) = Client(name, batch, layout), tensors(name)
    while (numbers := pipe.recv()) is not None:
        began = time.process_time()
        total.zero_()
        for k in numbers:
            client.flat.copy_(server)
            client.train(x[k], y[k])
            total.add_(client.flat)
        pipe.send(time.process_time() - began)


class Workers:
    """Processes that train clients of one net."""

    def __init__(self, name, batch, layout):
        self.server = Client(name, batch, layout).flat.share_memory_()
        self.pipes, self.totals = [], []
        for _ in range(WORKERS):
            total, (ours, theirs) = torch.zeros_like(self.server).share_memory_(), CONTEXT.Pipe()
            given = (name, batch, layout, self.server, total, theirs)
            CONTEXT.Process(target=serve, args=given, daemon=True).start()
            self.pipes.append(ours)
            self.totals.append(total)
        self.rng = np.random.default_rng(1)

    def play(self, clients):
        """A round; returns its processor time."""
        began = time.process_time()
        cohort = self.rng.choice(w.CLIENTS, clients, replace=False)
        for i, pipe in enumerate(self.pipes):
            pipe.send(cohort[i::WORKERS].tolist())
        cpu = sum(pipe.recv() for pipe in self.pipes)
        torch.sum(torch.stack(self.totals), 0, out=self.server)
        self.server.div_(clients)
        return cpu + time.process_time() - began

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)


CONTEXT = multiprocessing.get_context("fork")
_running: list[Workers] = []


def prepare(name, batch, clients):
    """Start workers with either layout, and keep the faster ones."""
    while _running:
        _running.pop().close()
    text = w.WORKS[name].text
    layouts = [torch.contiguous_format] + ([] if text else [torch.channels_last])
    seconds = {}
    for layout in layouts:
        workers = Workers(name, batch, layout)
        workers.play(clients)
        began = time.perf_counter()
        workers.play(clients)
        seconds[workers] = time.perf_counter() - began
    best = min(seconds, key=seconds.get)
    for workers in seconds:
        if workers is not best:
            workers.close()
    _running.append(best)
    return lambda: best.play(clients)


if __name__ == "__main__":
    torch.set_num_threads(1)
    w.serve(prepare)
