"""How the data and the work reach an actor: a packed store by its path, the rest through Ray."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from fedmom.algorithms.base import Algorithm, Attack, Rule
from fedmom.algorithms.workload import Workload
from fedmom.core.errors import FedMomError
from fedmom.data.federated import FederatedData
from fedmom.data.store.reader import is_store, load_store
from fedmom.models.base import Model

NO_SERVER = optax.identity()


class Store(NamedTuple):
    """A packed store, which actors map into memory themselves."""

    folder: Path
    checksum: str


class Program(NamedTuple):
    """What clients compute, without the data and without the server, which does not concern them.

    ``rule`` is there where an actor may add up its clients' updates.
    """

    model: Model
    algorithm: Algorithm
    seed: int
    attack: Attack | None
    rule: Rule | None


def store_of(data: FederatedData) -> Store | None:
    """Return the packed store that data is mapped from, if it is one, unchanged."""
    array: Any = next(iter(data.arrays.values()))
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    if data.checksum is None or array is None or array.filename is None:
        return None
    return Store(Path(array.filename).parent, data.checksum)


def without_names(data: FederatedData) -> FederatedData:
    """Return data as actors need it: the clients' names may be a million texts."""
    tests = None if data.test_users is None else Numbers(len(data.test_users))
    return dataclasses.replace(data, users=Numbers(data.clients), test_users=tests)


class Numbers(Sequence[str]):
    """Names of clients that are their numbers, of which none is stored."""

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:  # a name, or a list of them
        found = self._numbers[index]
        return str(found) if isinstance(found, int) else [str(number) for number in found]


def opened(store: Store) -> FederatedData | None:
    """Map a store into memory; None where this machine does not have it."""
    try:
        data = load_store(store.folder) if is_store(store.folder) else None
    except FedMomError:
        return None  # torn or changed: the driver's own is sent instead
    return data if data is not None and data.checksum == store.checksum else None


def pickled(workload: Workload) -> bytes:
    """Return what clients compute, with the rule where updates may be added up on their way."""
    from ray import cloudpickle

    algorithm = workload.algorithm._replace(server=NO_SERVER, rule=None)
    rule = workload.method.rule if workload.method.adds_up else None
    program = Program(workload.model, algorithm, workload.seed, workload.attack, rule)
    return cloudpickle.dumps(program)


@lru_cache(maxsize=32)
def loaded(program: bytes) -> Program:
    """Return the program that was sent; equal ones are one object, and are compiled once."""
    from ray import cloudpickle

    return cloudpickle.loads(program)
