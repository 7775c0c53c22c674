"""How the data and the work reach an actor: a packed store by its path, the rest through Ray."""

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmom.algorithms.base import Client, Rule, unchanged
from fedmom.algorithms.client import LocalWork
from fedmom.core.errors import FedMomError
from fedmom.data.federated import FederatedData
from fedmom.data.store.reader import is_store, open_store
from fedmom.models.base import Model
from fedmom.runtimes.base import Workload


class Store(NamedTuple):
    """A packed store, which actors map into memory themselves."""

    folder: Path
    checksum: str


class Program(NamedTuple):
    """What clients compute, without the data.

    ``rule`` is there where an actor may add up its clients' updates. ``cohort`` is that of the
    whole run, so that calls hold as many clients as they do on one machine.
    """

    model: Model
    work: LocalWork
    client: Client
    seed: int
    rule: Rule | None
    cohort: int | None = None


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
    users: Any = range(data.clients)
    tests: Any = None if data.test_users is None else range(len(data.test_users))
    return dataclasses.replace(data, users=users, test_users=tests)


def opened(store: Store) -> FederatedData | None:
    """Map a store into memory; None where this machine does not have it."""
    try:
        data = open_store(store.folder) if is_store(store.folder) else None
    except FedMomError:
        return None  # torn or changed: the driver's own is sent instead
    return data if data is not None and data.checksum == store.checksum else None


def program_of(workload: Workload, *, sums: bool) -> Program:
    """Return what clients compute, with the rule where updates may be added up on their way."""
    return Program(
        workload.model,
        workload.local_work,
        workload.method_client,  # the actor's own runtime adds the model's state
        workload.seed,
        summing_rule(workload) if sums else None,
        workload.cohort,
    )


def summing_rule(workload: Workload) -> Rule | None:
    """Return the rule, if the updates may be added up before they reach the server.

    Not where it needs each of them, nor where a stage decodes each of them on the server.
    """
    from fedmom.algorithms.aggregation import mean

    algorithm = workload.algorithm
    if algorithm is None or any(stage.decode is not unchanged for stage in algorithm.stages):
        return None
    rule = algorithm.rule or mean()
    return rule if rule.needs == "sum" else None


@lru_cache(maxsize=32)
def loaded(pickled: bytes) -> Program:
    """Return the program that was sent; equal ones are one object, and are compiled once."""
    from ray import cloudpickle

    program: Program = cloudpickle.loads(pickled)
    return program
