"""Federated learning with server momentum: the public names."""

from fedmom.algorithms import ALGORITHMS, Algorithm
from fedmom.clients import LocalWork, full_gradient
from fedmom.data import DATASETS, Features, FederatedData, from_arrays
from fedmom.data import load as load_data
from fedmom.errors import FedMomError
from fedmom.metrics import Evaluator, Metrics
from fedmom.models import MODELS, Model
from fedmom.models import build as build_model
from fedmom.rounds import Record, Reply, Runtime, State, model_of, start, train
from fedmom.runtimes.local import LocalRuntime
from fedmom.sampling import cohort
from fedmom.server import averaged, fedadagrad, fedadam, fedavg, fedavgm, fedmom, fedyogi

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "MODELS",
    "Algorithm",
    "Evaluator",
    "Features",
    "FedMomError",
    "FederatedData",
    "LocalRuntime",
    "LocalWork",
    "Metrics",
    "Model",
    "Record",
    "Reply",
    "Runtime",
    "State",
    "averaged",
    "build_model",
    "cohort",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedmom",
    "fedyogi",
    "from_arrays",
    "full_gradient",
    "load_data",
    "model_of",
    "start",
    "train",
]
