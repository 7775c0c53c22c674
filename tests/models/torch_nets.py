"""PyTorch nets of all kinds, and what compares one with its form in JAX, in float64.

    python -m tests.models.torch_nets

writes the table of docs/torch.md. torchvision has no build for a CPU where this was written: its
nets are plain Python, and are imported without its compiled operations.
"""

import importlib
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fedmom.models.torch.export import convert  # noqa: E402
from fedmom.models.torch.graph import arranged  # noqa: E402

# torchvision's tables of compiled operations, of which classifiers need none.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("none"))
nn = torch.nn
PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
ROWS, CLASSES, WORDS = 4, 3, 50
INPUTS = {
    "vectors": (10,),
    "series": (7, 5),
    "gray images": (28, 28),
    "color images": (64, 64, 3),
    "small images": (16, 16, 3),
    "tokens": (12,),
}


class Read(nn.Module):
    """A recurrent layer, and a dense one on its outputs at the last time."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, CLASSES)

    def forward(self, x):
        outputs, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.out(outputs[:, -1]) + last.sum((0, 2))[:, None]


class Cells(nn.Module):
    """Cells of three kinds in a loop of Python."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(5, 6), nn.GRUCell(6, 6), nn.RNNCell(6, 6)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        h = c = g = r = x.new_zeros(x.shape[0], 6)
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
            r = self.rnn(g, r)
        return self.out(r)


class Encoder(nn.Module):
    """Embeddings, transformer layers of torch.nn, and the mean over time."""

    def __init__(self, **how):
        super().__init__()
        self.rows = nn.Embedding(WORDS, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, **how)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x):
        hidden = self.layers(self.rows(x), src_key_padding_mask=x == 0)
        return self.out(hidden.mean(1))


class Decoder(nn.Module):
    """A causal decoder that reads its own embeddings as memory."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(WORDS, 16)
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x):
        rows = self.rows(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.layer(rows, rows, tgt_mask=mask.to(rows.dtype)).mean(1))


class UNet(nn.Module):
    """Down twice and up twice: once by a transposed convolution, once by interpolation."""

    def __init__(self):
        super().__init__()
        self.into = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16), nn.GELU())
        self.deep = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1, groups=4), nn.Tanh())
        self.up = nn.ConvTranspose2d(16, 16, 3, 2, 1, output_padding=1, groups=2)
        self.out = nn.Conv2d(8 + 16, CLASSES, 3, dilation=2, padding="same")

    def forward(self, x):
        first = self.into(x)
        second = self.down(first)
        up = torch.relu(self.up(self.deep(second))) + second
        up = nn.functional.interpolate(up, scale_factor=2, mode="bilinear")
        return self.out(torch.cat([first, up], 1)).mean((2, 3))


class Bags(nn.Module):
    """The mean of embeddings, as in PyTorch's tutorial on text."""

    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.EmbeddingBag(WORDS, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.out(self.rows(x))


class Pools(nn.Module):
    """Poolings that overlap, are padded, or do not divide the image."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")
        self.a = nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.b = nn.AvgPool2d(3, 2, 1, ceil_mode=True)
        self.c, self.d = nn.AdaptiveAvgPool2d((3, 5)), nn.AdaptiveMaxPool2d((2, 3))
        self.out = nn.LazyLinear(CLASSES)

    def forward(self, x):
        x = nn.functional.pad(self.conv(x), (1, 0, 2, 1), mode="reflect")
        found = [self.c(self.a(x)), self.d(self.b(x)), nn.functional.unfold(x, 7, stride=7)]
        found.append(nn.functional.interpolate(x, size=(5, 9), mode="bicubic"))
        found.append(nn.functional.interpolate(x, size=(11, 3), mode="nearest"))
        return self.out(torch.cat([part.flatten(1) for part in found], 1))


class ResNet(nn.Module):
    """Two residual blocks with batch norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.a, self.b = self.block(8, 8), self.block(8, 16, 2)
        self.short = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.out = nn.Linear(16, CLASSES)

    @staticmethod
    def block(into, out, stride=1):
        first = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        return nn.Sequential(
            first, nn.BatchNorm2d(out), nn.ReLU(), second, nn.BatchNorm2d(out, momentum=0.3)
        )

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.a(x))
        x = torch.relu(self.short(x) + self.b(x))
        return self.out(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def mlp():
    layers = nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.LayerNorm(20)
    return nn.Sequential(*layers, nn.Linear(20, CLASSES))


def lenet():
    first = nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(400, 84), nn.ReLU(), nn.Linear(84, CLASSES))


def conv1d():
    first = nn.Conv1d(7, 8, 3, padding=1), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.MaxPool1d(2)
    second = nn.Conv1d(8, 8, 2, groups=8), nn.ELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(8, CLASSES))


def vision(name, **how):
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    return getattr(models, name)(num_classes=CLASSES, **how)


def transformer(name, config, **sizes):
    pytest.importorskip("transformers", reason="transformers is not installed")
    models = importlib.import_module("transformers")
    return getattr(models, name)(getattr(models, config)(**sizes))


SMALL = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}
HIDDEN = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}


def bert():
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {**HIDDEN, **off, "num_labels": CLASSES, "vocab_size": WORDS}
    return transformer("BertForSequenceClassification", "BertConfig", **sizes)


def distilbert():
    sizes = {"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32}
    name = "DistilBertForSequenceClassification"
    return transformer(name, "DistilBertConfig", num_labels=CLASSES, **sizes)


def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return transformer("GPT2LMHeadModel", "GPT2Config", **SMALL, **sizes)


def llama():
    return transformer("LlamaForCausalLM", "LlamaConfig", **SMALL, **HIDDEN, num_key_value_heads=2)


def vit():
    sizes = {"image_size": 64, "patch_size": 16, "num_labels": CLASSES}
    return transformer("ViTForImageClassification", "ViTConfig", **HIDDEN, **sizes)


class Net(NamedTuple):
    """How a net is made, what it reads, and how far it may be from PyTorch's numbers."""

    make: object
    reads: str
    far: float = 1e-9


SINGLE = 1e-5  # parts of these compute in 32 bits, whatever the type of the weights
BOTH = {"batch_first": True, "bidirectional": True}
NETS = {
    "MLP with batch and layer norm": Net(mlp, "vectors"),
    "LeNet-5": Net(lenet, "gray images"),
    "small ResNet": Net(ResNet, "small images"),
    "1-d CNN": Net(conv1d, "series"),
    "U-Net (transposed convolution, interpolation)": Net(UNet, "small images"),
    "poolings, paddings, unfold, resizing": Net(Pools, "gray images"),
    "LSTM": Net(lambda: Read(nn.LSTM(5, 8, batch_first=True), 8), "series"),
    "LSTM, 2 layers, both directions": Net(lambda: Read(nn.LSTM(5, 8, 2, **BOTH), 16), "series"),
    "GRU, 2 layers, both directions": Net(lambda: Read(nn.GRU(5, 8, 2, **BOTH), 16), "series"),
    "RNN, both directions": Net(lambda: Read(nn.RNN(5, 8, **BOTH), 16), "series"),
    "LSTM, GRU and RNN cells": Net(Cells, "series"),
    "EmbeddingBag": Net(Bags, "tokens"),
    "TransformerEncoder with padding mask": Net(Encoder, "tokens"),
    "TransformerEncoder, norm first, GELU": Net(
        lambda: Encoder(norm_first=True, activation="gelu"), "tokens"
    ),
    "TransformerDecoder, causal": Net(Decoder, "tokens"),
    "transformers BERT": Net(bert, "tokens"),
    "transformers DistilBERT": Net(distilbert, "tokens"),
    "transformers GPT-2": Net(gpt2, "tokens"),
    "transformers Llama (grouped queries)": Net(llama, "tokens", SINGLE),
    "transformers ViT": Net(vit, "color images"),
    "torchvision resnet18": Net(lambda: vision("resnet18"), "color images"),
    "torchvision mobilenet_v2": Net(lambda: vision("mobilenet_v2"), "color images"),
    "torchvision mobilenet_v3_small": Net(lambda: vision("mobilenet_v3_small"), "color images"),
    "torchvision efficientnet_b0": Net(lambda: vision("efficientnet_b0"), "color images"),
    "torchvision vit_b_16": Net(lambda: vision("vit_b_16", image_size=64), "color images"),
    "torchvision convnext_tiny": Net(lambda: vision("convnext_tiny"), "color images"),
    "torchvision vgg11_bn": Net(lambda: vision("vgg11_bn"), "color images"),
    "torchvision densenet121": Net(lambda: vision("densenet121"), "color images"),
}
LARGE = [name for name in NETS if name.startswith("torchvision")]


class Difference(NamedTuple):
    """The largest differences, relative to the largest number: in both modes."""

    parameters: int
    outputs: float
    gradients: float
    buffers: float | None

    @property
    def largest(self):
        return max(self.outputs, self.gradients, self.buffers or 0)


def numbers(reads, seed=0):
    rng, shape = np.random.default_rng(seed), (ROWS, *INPUTS[reads])
    if reads == "tokens":
        return rng.integers(1, WORDS, shape).astype(np.int32)
    return rng.normal(size=shape)


def without_dropout(module):
    """Dropout draws other numbers in each library."""
    for part in module.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


def difference(net):
    """Train and evaluate a net in both libraries, in float64."""
    torch.manual_seed(0)
    module, x = net.make(), numbers(net.reads)
    images = "images" in net.reads
    with torch.no_grad():  # lazy layers
        module.eval()(torch.zeros(1, 1, 28, 28)) if net.make is Pools else None
    module = without_dropout(module).double()
    with jax.enable_x64(True):
        found = convert(module, x[:1], images=images)
        worst = [_in_mode(module, found, x, train=train) for train in (False, True)]
        buffers = None
        if found.state:
            buffers = _all_far(worst[1][2], _state(module, found))
    size = sum(p.numel() for p in module.parameters())
    return Difference(size, max(w[0] for w in worst), max(w[1] for w in worst), buffers)


def _in_mode(module, found, x, *, train):
    module.train(train)
    module.zero_grad()
    given = torch.from_numpy(np.ascontiguousarray(arranged(x, found.axes)))
    outputs = module(given if x.dtype == np.float64 else given.long())
    outputs = getattr(outputs, "logits", outputs)
    share = np.cos(np.arange(outputs.numel())).reshape(tuple(outputs.shape))
    (outputs * torch.from_numpy(share)).sum().backward()

    def value(params):
        key = jax.random.key(0) if train else None
        ours, state = found.apply(params, found.state, jnp.asarray(x), key)
        return (ours * share).sum(), (ours, state)

    params = jax.tree.map(jnp.asarray, found.params)
    (_, (ours, state)), gradients = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    right = {
        name: np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        for name, p in module.named_parameters()
    }
    largest = max(np.abs(g).max() for g in right.values())
    off = max(np.abs(gradients[name] - g).max() for name, g in right.items())
    return _far(ours, outputs), float(off / largest), state


def _state(module, found):
    return {name: b for name, b in module.named_buffers() if name in found.state}


def _all_far(ours, right):
    """Together: a mean that is 0 up to rounding has no digits of its own."""
    off = max(np.abs(np.asarray(ours[name]) - b.numpy()).max() for name, b in right.items())
    return float(off / max(np.abs(b.numpy()).max() for b in right.values()))


def _far(ours, right):
    right = right.detach().numpy()
    return float(np.abs(np.asarray(ours) - right).max() / max(1e-300, np.abs(right).max()))


def table(found):
    """The table of the page, of the nets that could be made."""
    rows = ["| net | parameters | outputs | gradients | buffers |", "|---|--:|--:|--:|--:|"]
    for name, d in found.items():
        buffers = "" if d.buffers is None else f"{d.buffers:.0e}"
        row = f"{d.parameters:,} | {d.outputs:.0e} | {d.gradients:.0e} | {buffers}"
        rows.append(f"| {name} | {row} |")
    return "\n".join(rows)


def main(names):
    found = {}
    for name in names or NETS:
        try:
            found[name] = difference(NETS[name])
        except pytest.skip.Exception as missing:
            print(name, missing)
            continue
        print(name, found[name], flush=True)
        assert found[name].largest < NETS[name].far, name
    if not names:
        text = PAGE.read_text()
        marks = r"(?<=<!-- coverage -->\n).*?(?=\n<!-- end -->)"
        PAGE.write_text(re.sub(marks, table(found), text, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:])
