"""Federated learning with server momentum: the public names.

They are loaded when they are first used, so that ``import fedmom`` takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmom.algorithms import ALGORITHMS, ATTACKS, RULES, SCHEDULES, SOLVERS, STAGES
    from fedmom.algorithms import server as servers
    from fedmom.algorithms.attacks import alie, backdoor, gaussian, ipm, label_flip, sign_flip
    from fedmom.algorithms.base import Algorithm, Attack, Client, Round, Rule, Server, Stage
    from fedmom.algorithms.client import LOCAL_TRAINING, LocalProblem
    from fedmom.algorithms.local_work import LocalWork, full_gradient
    from fedmom.algorithms.methods.diloco import diloco
    from fedmom.algorithms.mixing import bucketing, nearest_neighbour_mixing
    from fedmom.algorithms.robust import (
        centered_clipping,
        geometric_median,
        krum,
        multi_krum,
        norm_bound,
    )
    from fedmom.algorithms.rules import mean, median, trimmed_mean
    from fedmom.algorithms.stages import clip, noise, quantize
    from fedmom.algorithms.workload import Workload
    from fedmom.api.calls import compare, load, report, resume, run, sweep
    from fedmom.api.runs import Run, Runs
    from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
    from fedmom.core.identity import named
    from fedmom.data import DATASETS
    from fedmom.data import load as load_data
    from fedmom.data.federated import Features, FederatedData
    from fedmom.data.partition import PARTITIONS
    from fedmom.data.sources.arrays import from_arrays, from_torch
    from fedmom.data.sources.huggingface import from_huggingface
    from fedmom.data.sources.images import from_images
    from fedmom.data.sources.table import from_csv, from_dataframe, from_parquet
    from fedmom.data.sources.texts import from_texts
    from fedmom.experiments.observers import Event
    from fedmom.models import ADAPTATIONS, METRICS, MODELS, losses, metrics
    from fedmom.models import build as build_model
    from fedmom.models.adapters import model
    from fedmom.models.base import Adapted, Model
    from fedmom.models.fine_tuning import frozen, lora
    from fedmom.models.metrics import Metric
    from fedmom.models.precision import bfloat16
    from fedmom.models.pretrained import pretrained
    from fedmom.models.torch.table import torch_op
    from fedmom.models.variables import Variables, Whole
    from fedmom.runtimes import RUNTIMES
    from fedmom.runtimes.base import Block, Failure, Runtime, Scores, Snapshot
    from fedmom.runtimes.cluster.runtime import RayRuntime
    from fedmom.runtimes.local import LocalRuntime
    from fedmom.training import PACES, SAMPLERS
    from fedmom.training.evaluation import Metrics, evaluate
    from fedmom.training.loop import Record, State, model_of, start, train
    from fedmom.training.pace import Pace, buffered, over_selected, synchronous
    from fedmom.training.samplers import Sampler, poisson, uniform, weighted
    from fedmom.world import WORLDS
    from fedmom.world import parts as worlds
    from fedmom.world.base import Draws, Moment, Task, World
    from fedmom.world.runtime import WorldRuntime, in_world

_HOMES = {
    "algorithms": ("ALGORITHMS", "ATTACKS", "RULES", "SCHEDULES", "SOLVERS", "STAGES"),
    "algorithms.attacks": ("alie", "backdoor", "gaussian", "ipm", "label_flip", "sign_flip"),
    "algorithms.base": ("Algorithm", "Attack", "Client", "Round", "Rule", "Server", "Stage"),
    "algorithms.client": ("LOCAL_TRAINING", "LocalProblem"),
    "algorithms.local_work": ("LocalWork", "full_gradient"),
    "algorithms.methods.diloco": ("diloco",),
    "algorithms.mixing": ("bucketing", "nearest_neighbour_mixing"),
    "algorithms.robust": (
        *("centered_clipping", "geometric_median", "krum", "multi_krum", "norm_bound"),
    ),
    "algorithms.rules": ("mean", "median", "trimmed_mean"),
    "algorithms.stages": ("clip", "noise", "quantize"),
    "algorithms.workload": ("Workload",),
    "api.calls": ("compare", "load", "report", "resume", "run", "sweep"),
    "api.runs": ("Run", "Runs"),
    "core.errors": ("BadReplyError", "DivergedError", "FedMomError"),
    "core.identity": ("named",),
    "data": ("DATASETS",),
    "data.federated": ("Features", "FederatedData"),
    "data.partition": ("PARTITIONS",),
    "data.sources.arrays": ("from_arrays", "from_torch"),
    "data.sources.huggingface": ("from_huggingface",),
    "data.sources.images": ("from_images",),
    "data.sources.table": ("from_csv", "from_dataframe", "from_parquet"),
    "data.sources.texts": ("from_texts",),
    "experiments.observers": ("Event",),
    "models": ("ADAPTATIONS", "METRICS", "MODELS"),
    "models.adapters": ("model",),
    "models.base": ("Adapted", "Model"),
    "models.fine_tuning": ("frozen", "lora"),
    "models.metrics": ("Metric",),
    "models.precision": ("bfloat16",),
    "models.pretrained": ("pretrained",),
    "models.torch.table": ("torch_op",),
    "models.variables": ("Variables", "Whole"),
    "runtimes": ("RUNTIMES",),
    "runtimes.base": ("Block", "Failure", "Runtime", "Scores", "Snapshot"),
    "runtimes.cluster.runtime": ("RayRuntime",),
    "runtimes.local": ("LocalRuntime",),
    "training": ("PACES", "SAMPLERS"),
    "training.evaluation": ("Metrics", "evaluate"),
    "training.loop": ("Record", "State", "model_of", "start", "train"),
    "training.pace": ("Pace", "buffered", "over_selected", "synchronous"),
    "training.samplers": ("Sampler", "poisson", "uniform", "weighted"),
    "world": ("WORLDS",),
    "world.base": ("Draws", "Moment", "Task", "World"),
    "world.runtime": ("WorldRuntime", "in_world"),
}
_RENAMED = {"load_data": ("data", "load"), "build_model": ("models", "build")}
_MODULES = {
    "servers": "algorithms.server",
    "losses": "models.losses",
    "metrics": "models.metrics",
    "worlds": "world.parts",
}
_NAMES = {name: (home, name) for home, names in _HOMES.items() for name in names} | _RENAMED

__all__ = [*_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedmom")
    if name in _MODULES:
        value: Any = importlib.import_module(f"fedmom.{_MODULES[name]}")
    elif name in _NAMES:
        home, inside = _NAMES[name]
        value = getattr(importlib.import_module(f"fedmom.{home}"), inside)
    else:
        raise AttributeError(f"module 'fedmom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
