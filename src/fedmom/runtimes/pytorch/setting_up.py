"""What worker processes need of a workload; what they cannot do is refused here."""

import copy
import pickle
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import optax
import torch
from numpy.typing import NDArray

from fedmom.algorithms import solvers
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.workload import Workload
from fedmom.core.errors import FedMomError
from fedmom.core.identity import label
from fedmom.core.registry import options_of
from fedmom.models import losses, torch_calls
from fedmom.models.adapters import example
from fedmom.models.base import Model
from fedmom.models.torch_modules import TorchModule, buffers, torch_of, trained
from fedmom.runtimes.pytorch import memory
from fedmom.runtimes.pytorch.batches import Batches
from fedmom.runtimes.pytorch.memory import Mapped, Place
from fedmom.runtimes.pytorch.solvers import SOLVERS
from fedmom.runtimes.pytorch.training import Work
from fedmom.runtimes.pytorch.worker import Setup

ROWS = 2  # of the batch that training is tried on


class Parts(NamedTuple):
    """The setup, but for the samples; how long a slot is; and the shape of a sample's output."""

    setup: Setup
    slot: int
    form: tuple[int, ...]


def of(workload: Workload) -> Parts:
    """Return what workers need, or say why the runtime cannot run this."""
    found = _module(workload.model)
    _check_method(workload)
    work = _work(workload)
    module = copy.deepcopy(found.module)
    params, end = memory.placed({n: p.numpy() for n, p in trained(module).items()})
    state, end = memory.placed({n: _as_stored(b) for n, b in buffers(module).items()}, end)
    x = torch_calls.given(_random_inputs(workload), found.channels)
    channels_last = _is_image_net(module) and _trains(module, x, channels_last=True) is None
    if not channels_last and (failed := _trains(module, x, channels_last=False)) is not None:
        raise FedMomError(
            f"The module cannot be trained on a batch of shape {tuple(x.shape)}:"
            f" {str(failed).partition(chr(10))[0].rstrip('.')}."
        ) from failed
    with torch.no_grad():
        form = tuple(torch_calls.outputs(copy.deepcopy(found.module).eval(), x).shape[1:])
    window = workload.data.features.shape[0] if workload.data.features.kind == "text" else 0
    nowhere = Place(0, (0,), "<f4")
    layouts = found.channels, channels_last
    plain = workload.method.is_plain
    setup = Setup(module, *layouts, params, state, nowhere, window, {}, work, plain)
    return Parts(setup, end, form)


def shared(arrays: Mapping[str, NDArray[Any]], first: int) -> tuple[dict[str, Place | Mapped], int]:
    """Return where workers find the samples: in files where they are mapped, else in memory.

    Args:
        arrays: Those of the data.
        first: Where the shared memory has room for them.
    """
    in_files = {name: where for name, a in arrays.items() if (where := memory.mapped(a))}
    rest, end = memory.placed({n: a for n, a in arrays.items() if n not in in_files}, first)
    return {**in_files, **rest}, end


def pickled(setup: Setup) -> bytes:
    """Return the setup for other processes, with classes that are defined in a notebook."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = pickle
    try:
        return cloudpickle.dumps(setup)
    except Exception as error:  # of the user's module
        raise FedMomError(
            f"The module cannot be sent to worker processes: {error}. A class that is defined in a"
            " notebook or a script needs cloudpickle: pip install 'fedmom[torch]'."
        ) from error


def _module(model: Model) -> TorchModule:
    if model.adapted is not None:
        raise FedMomError(
            "The runtime torch trains a PyTorch module as it is, and this model has an adaptation."
            " Leave adapt out, or use runtime local with a model of JAX."
        )
    found = torch_of(model)
    if found is None:
        raise FedMomError(
            "The runtime torch trains PyTorch modules, and this model is one of JAX. Use runtime"
            " local, or give a torch.nn.Module as the model."
        )
    if model.state == "local":
        raise FedMomError('The runtime torch has no state="local". Use state="average".')
    return found


def _check_method(workload: Workload) -> None:
    """Refuse clients that compute what JAX alone can."""
    if workload.algorithm.client is not None:
        raise FedMomError(
            "The algorithm has a client of its own, which is a program of JAX. The runtime torch"
            " does plain local training: use fedavg, fedmom or another server's method."
        )


def _work(workload: Workload) -> Work:
    work, has_state = workload.work, workload.model.state is not None
    if has_state and work.batch_size is None:
        raise FedMomError(
            "A module with state, such as batch norm's, is trained on batches, but this local work"
            " takes one gradient of the client's whole data. Give a batch-size, and no fedsgd."
        )
    if has_state and work.accumulate > 1:
        raise FedMomError(
            f"accumulate {work.accumulate} would show a module with state, such as batch norm's,"
            " smaller batches than those that were asked for. Leave it out."
        )
    batches = Batches(work.batch_size, work.shuffled, work.accumulate, filled=has_state)
    return Work(batches, _loss(workload.model), _solver(work), work.prox)


def _loss(model: Model) -> str:
    for name in torch_calls.LOSSES:
        if model.loss is getattr(losses, name):
            return name
    raise FedMomError(
        f"The loss {label(model.loss)} is a function of JAX, which PyTorch cannot train with. The"
        f" runtime torch has {', '.join(torch_calls.LOSSES)}."
    )


# optax's functions of the learning rate, with options of the same names.
_OPTAX = {optax.sgd: "sgd", optax.rmsprop: "rmsprop", optax.adam: "adam", optax.adamw: "adamw"}
_SOLVERS = {getattr(solvers, name): name for name in SOLVERS} | _OPTAX


def _solver(work: LocalWork) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of the solver."""
    solver: Any = work.solver
    given = dict(solver.keywords) if isinstance(solver, partial) else {}
    function = solver.func if isinstance(solver, partial) and not solver.args else solver
    name = _SOLVERS.get(function) if callable(function) else None
    if name is None or given.keys() - options_of(SOLVERS[name]).keys():
        of = f" with {', '.join(given)}" if name else ""
        raise FedMomError(
            f"The solver {label(function)}{of} is a program of JAX. The runtime torch has"
            f" {', '.join(SOLVERS)}: solver='sgd:momentum=0.9'."
        )
    return name, given


def _as_stored(value: torch.Tensor) -> NDArray[Any]:
    """Return a buffer as the server has it: whole numbers have 32 bits there."""
    array = value.numpy()
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _random_inputs(workload: Workload) -> torch.Tensor:
    """Return a batch as training may have it: batch norm fails on one that is all zeros."""
    x = np.repeat(example(workload.data), ROWS, axis=0)
    rng = np.random.default_rng(0)
    if np.issubdtype(x.dtype, np.integer):
        return torch.from_numpy(x).long()
    return torch.from_numpy(rng.uniform(size=x.shape).astype(np.float32))


def _is_image_net(module: torch.nn.Module) -> bool:
    return any(isinstance(part, torch.nn.Conv2d) for part in module.modules())


def _trains(module: torch.nn.Module, x: torch.Tensor, *, channels_last: bool) -> Exception | None:
    """Return why a module cannot be trained: some take their inputs for contiguous."""
    net = copy.deepcopy(module).train()
    layout = torch.channels_last if channels_last else torch.preserve_format
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            net = net.to(memory_format=layout)
            torch_calls.outputs(net, x).sum().backward()
    except Exception as error:  # of the user's module
        return error
    return None
