"""Files in LEAF's JSON, for tests."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW

Clients = dict[str, tuple[list[Any], list[Any]]]


def shard(clients: Clients) -> dict[str, Any]:
    return {
        "users": list(clients),
        "num_samples": [len(y) for _, y in clients.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in clients.items()},
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def image(seed: int, samples: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    greys = rng.integers(0, 256, (samples, 784))
    return (greys / 255).tolist(), rng.integers(0, 62, samples).tolist()


def windows(text: str) -> tuple[list[Any], list[Any]]:
    starts = range(len(text) - WINDOW)
    return [text[i : i + WINDOW] for i in starts], [text[i + WINDOW] for i in starts]


def speech(seed: int, length: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list(SYMBOLS), length))
