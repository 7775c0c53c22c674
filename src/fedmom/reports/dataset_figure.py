"""A dataset in figures: how unequal its clients are (the paper's Figure 2), and its samples."""

import string
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.files import make_folder, write_atomic
from fedmom.data.federated import FederatedData
from fedmom.data.sources.shakespeare import SYMBOLS
from fedmom.data.summary import counts, label_mix, statistics
from fedmom.reports.drawing import image_bytes, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED = "#0072B2", "#D55E00"
CLIENTS_SHOWN, SAMPLES_SHOWN = 8, 14
LETTERS_OF_NAME = 60
LETTERS_OF_LABEL = 12
VALUES_SHOWN = 200


def show(data: FederatedData, folder: Path) -> list[Path]:
    """Draw the population and a page of samples as PNG files."""
    make_folder(folder)
    pages = {"image": _image_page, "text": _text_page}
    figures = {folder / "population.png": _population(data)}
    if data.features.kind in pages:
        figures[folder / "samples.png"] = pages[data.features.kind](data)
    for path, figure in figures.items():
        write_atomic(path, image_bytes(figure, dpi=140))
    return list(figures)


def _figure(width: float, height: float, title: str) -> "Figure":
    # Imported here: drawing takes a second to load that a run need not wait for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(plain(title), x=0.01, ha="left", fontweight="bold")
    return figure


def _population(data: FederatedData) -> "Figure":
    """Samples per client, sorted and as a histogram, and the label mix of clients."""
    sizes, row = np.sort(counts(data))[::-1], statistics(data)
    title = f"{data.name}: {row.samples:,} samples of {row.clients:,} clients"
    figure = _figure(14, 4.6, title)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.5))
    left.fill_between(np.arange(1, len(sizes) + 1), sizes, step="mid", color=BLUE, alpha=0.8)
    left.axhline(row.mean, color=RED, linewidth=1.5, label=f"mean {row.mean:,.1f}")
    left.set(xlabel="clients, largest first", ylabel="samples", ylim=(0, None))
    left.set_title("Unbalance: samples per client", loc="left", fontsize=11)
    left.legend(frameon=False)
    middle.hist(sizes, bins=min(40, max(5, len(sizes) // 4)), color=BLUE, alpha=0.8)
    middle.set(xlabel="samples", ylabel="clients")
    middle.set_title(f"std {row.std:,.1f}, {sizes[-1]:,} to {sizes[0]:,}", loc="left", fontsize=11)
    (_values if data.features.task == "regression" else _label_mixes)(right, data)
    for axis in (left, middle):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure


def _label_mixes(axis: Any, data: FederatedData) -> None:
    """Draw each client's share of every label, for clients spread over the population."""
    shown = _spread(data, 40)
    mixes = np.array([label_mix(data, k) for k in shown], float)
    used = np.flatnonzero(mixes.sum(axis=0))
    shares = mixes[:, used] / mixes.sum(axis=1, keepdims=True)
    axis.imshow(np.sqrt(shares), aspect="auto", cmap="Blues", interpolation="nearest")
    names = _label_names(data)
    axis.set_xticks(range(len(used)), [names[i] for i in used], fontsize=6 if len(used) > 30 else 9)
    axis.set(xlabel="label", ylabel=f"{len(shown)} clients")
    axis.set_title("Heterogeneity: share of each label (darker is more)", loc="left", fontsize=11)


def _values(axis: Any, data: FederatedData) -> None:
    """Draw the values to predict, the first of each sample, for clients spread over all."""
    shown = _spread(data, 40)
    for place, k in enumerate(shown):
        _, y = _some(data, k, VALUES_SHOWN)
        axis.scatter(y[:, 0], np.full(len(y), place), s=8, color=BLUE, alpha=0.4)
    axis.set(xlabel="value to predict", ylabel=f"{len(shown)} clients")
    axis.set_title("Heterogeneity: values to predict", loc="left", fontsize=11)


def _image_page(data: FederatedData) -> "Figure":
    """One client a row, some of its samples in it."""
    shown = _spread(data, CLIENTS_SHOWN)
    title = f"{data.name}: a client per row"
    figure = _figure(SAMPLES_SHOWN * 0.75, len(shown) * 0.95 + 0.6, title)
    axes = figure.subplots(len(shown), SAMPLES_SHOWN, squeeze=False)
    names = _label_names(data)
    for line, k in zip(axes, shown, strict=True):
        x, y = _some(data, k, SAMPLES_SHOWN)
        for axis in line:
            axis.axis("off")
        for axis, image, label in zip(line, x, y, strict=False):
            axis.imshow(image, cmap=None if image.ndim == 3 else "gray", vmin=0, vmax=1)
            axis.set_title(_label(data, names, label), fontsize=8, color=RED, pad=1.5)
        below = {"transform": line[0].transAxes, "fontsize": 7, "va": "top"}
        line[0].text(0, -0.08, _short(data.users[k]), **below)
    return figure


def _text_page(data: FederatedData) -> "Figure":
    """A few windows of each client, with the character to predict."""
    shown = _spread(data, CLIENTS_SHOWN)
    title = f"{data.name}: {data.features.shape[0]} characters > the next"
    figure = _figure(7.2, len(shown) * 0.85 + 0.6, title)
    axis = figure.subplots()
    axis.axis("off")
    symbols = data.class_names or SYMBOLS
    for place, k in enumerate(shown):
        y = 1 - place / len(shown)
        axis.text(0, y, _short(data.users[k]), fontsize=9, color=BLUE, va="top", weight="bold")
        x, labels = _some(data, k, 2)
        for line, (window, label) in enumerate(zip(x, labels, strict=True), 1):
            words = "".join(symbols[int(s)] for s in window)
            text = plain(f"{words} > {symbols[int(label)]!r}")
            axis.text(0.01, y - 0.03 * line, text, fontsize=8, family="monospace", va="top")
    return figure


def _short(name: object) -> str:
    """Return a name as text that is short enough to draw."""
    return plain(textwrap.shorten(str(name), LETTERS_OF_NAME, placeholder="..."))


def _some(data: FederatedData, client: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read training samples spread evenly over a client's."""
    from fedmom.data.batches import place, read_at  # slow to import

    start, size = int(data.train.start[client]), int(data.train.size[client])
    places = start + np.arange(min(size, count)) * size // min(size, count)
    return read_at(data.features, place(data.arrays), places)


def _spread(data: FederatedData, count: int) -> list[int]:
    """Return clients spread evenly over the population."""
    return [int(k) for k in np.unique(np.linspace(0, data.clients - 1, count).astype(int))]


def _label(data: FederatedData, names: list[str], label: NDArray[Any]) -> str:
    """Return the label of a sample, short enough to stand above it."""
    if data.features.task == "regression":
        return f"{label[0]:.3g}"
    found = np.flatnonzero(label) if data.features.task == "multilabel" else np.atleast_1d(label)
    text = "+".join(names[int(i)] for i in found)
    return textwrap.shorten(text, LETTERS_OF_LABEL, placeholder="...") or "none"


def _label_names(data: FederatedData) -> list[str]:
    classes = data.features.classes
    if data.features.kind == "text":
        symbols = data.class_names or SYMBOLS
        return ["␣" if s == " " else plain(repr(s)[1:-1]) for s in symbols]
    if data.class_names is not None:
        return list(map(_short, data.class_names))
    if data.features.kind == "image" and classes == 62:
        return list(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    return [str(i) for i in range(classes)]
