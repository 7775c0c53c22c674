"""The nodes that a strategy has seen, and their samples, by the keys that they keep."""

import json
from pathlib import Path

from flwr.serverapp import Grid

from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json, write_atomic
from fedmom.runtimes.devices.link import Link, Node
from fedmom.runtimes.devices.population import natural

FILE = "nodes.json"


class KnownNodes:
    """Remembers the samples of every node, so that population weights outlive its absence.

    A node whose samples are not known yet counts as one of the mean.

    Args:
        folder: Where they are kept; None: nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._samples: dict[str, int | None] = {}
        if folder is not None and (folder / FILE).exists():
            try:
                found = parse_json((folder / FILE).read_bytes())
                self._samples = {str(k): None if n is None else int(n) for k, n in found.items()}
            except (ValueError, AttributeError, TypeError, OverflowError):
                raise FedMomError(f"{folder / FILE} is damaged. Remove it.") from None

    def online(self, grid: Grid) -> list[Node]:
        """Return the nodes that are online, in the order of their names."""
        nodes = sorted(Link(grid).nodes(), key=lambda node: (natural(node.name), node.key))
        for node in nodes:
            self._samples.setdefault(node.key, None)
        return nodes

    def note(self, key: str, samples: int) -> None:
        """Note what a node tells."""
        self._samples[key] = samples

    def count(self) -> int:
        """Return K, the nodes seen so far."""
        return len(self._samples)

    def total(self) -> int:
        """Return n, the samples of all nodes, known or guessed."""
        told = [samples for samples in self._samples.values() if samples is not None]
        return round(sum(told) / len(told) * len(self._samples)) if told else 0

    def save(self) -> None:
        """Keep them."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / FILE, json.dumps(self._samples, indent=2).encode())
