"""From ``torch.nn.Module`` to plain data, by ``torch.export``, which needs torch."""

import contextlib
import inspect
import io
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.models.torch import table
from fedmom.models.torch.graph import Converted, Graph, Operation, Ref, arranged

ROWS = 3  # of the example; the size of a batch stays open
WAY_OUT = (
    'let the clients train in PyTorch itself: runtime="torch:workers=2" (docs/torch_runtime.md)'
)
# What says where tensors are, which is JAX's concern here.
_IGNORED = {"device", "generator", "layout", "memory_format", "non_blocking", "pin_memory"}
_KINDS = torch.export.graph_signature.InputKind
_OUTPUTS = torch.export.graph_signature.OutputKind


def convert(module: torch.nn.Module, x: NDArray[Any], *, images: bool) -> Converted:
    """Return a module as data.

    Args:
        module: The module, with its weights.
        x: A batch of one input.
        images: Whether inputs are images, whose channels PyTorch has first.

    Raises:
        FedMomError: The module does not take such inputs, cannot be exported, or uses an operation
            that is not known.
    """
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    one = _OneOutput(module)
    with _undisturbed(module):
        axes, given = _fitting(one, x, images=images)
        graphs = {mode: _graph(one, given, train=mode) for mode in (True, False)}
    trained = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    changed = graphs[True][0].changed
    constants = {**graphs[True][1], **graphs[False][1]}
    constants |= {n: _array(b) for n, b in buffers.items() if n not in changed}
    used = {op for graph, _ in graphs.values() for op in _ops(graph)}
    return Converted(
        params={name: _array(p) for name, p in trained.items()},
        state={n: _array(b) for n, b in buffers.items() if n in changed},
        constants=constants,
        train=graphs[True][0],
        evaluate=graphs[False][0],
        axes=axes,
        dtype=_name(given.dtype),
        frozen=tuple(name for name, p in trained.items() if not p.requires_grad),
        own={name: table.OWN[name] for name in sorted(used & table.OWN.keys())},
    )


class _OneOutput(torch.nn.Module):  # type: ignore[misc]
    """A module that returns one tensor of what another one returns."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        # A transformer would return a cache, too.
        names = inspect.signature(module.forward).parameters
        self.options = {"use_cache": False} if "use_cache" in names else {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the only tensor, the logits, or the first."""
        outputs = self.module(x, **self.options)
        found = getattr(outputs, "logits", None)
        if found is None and isinstance(outputs, Mapping):
            found = outputs.get("logits")
        leaves = [found, *torch.utils._pytree.tree_leaves(outputs)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise TypeError(f"it returns {type(outputs).__name__}, and a tensor is needed")
        return tensors[0]


@contextlib.contextmanager
def _undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Leave the module and torch as they were; keep layers whole where torch would fuse them."""
    modes = {each: each.training for each in module.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
            for each, mode in modes.items():
                each.training = mode


def _fitting(
    module: torch.nn.Module, x: NDArray[Any], *, images: bool
) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return the order of axes that the module takes, and an example in it."""
    module.eval()
    batch = np.repeat(x, ROWS, axis=0)
    first: FedMomError | None = None
    for axes in _orders(x.shape, images=images):
        for dtype in _dtypes(module, x):
            given = torch.from_numpy(np.ascontiguousarray(arranged(batch, axes))).to(dtype)
            try:
                with torch.no_grad():
                    module(given)
                return axes, given
            except Exception as error:  # of the user's module
                shape = ", ".join(map(str, given.shape[1:]))
                first = first or FedMomError(
                    f"The PyTorch module cannot be applied to inputs of shape (N, {shape})"
                    f" ({_name(dtype)}): {_said(error)}."
                )
    assert first is not None
    raise first


def _orders(shape: tuple[int, ...], *, images: bool) -> list[tuple[int, ...]]:
    """Return the orders of axes that a module may want, the likeliest first."""
    plain = tuple(range(len(shape)))
    if images and len(shape) == 3:
        return [(0, -1, 1, 2), plain]
    if images and len(shape) == 4:
        first, last = shape[1] in (1, 3, 4), shape[3] in (1, 3, 4)
        orders = [(0, 3, 1, 2), plain]
        return orders[::-1] if first and not last else orders
    return [plain]


def _dtypes(module: torch.nn.Module, x: NDArray[Any]) -> list[torch.dtype]:
    floats = [p.dtype for p in module.parameters() if p.is_floating_point()]
    real = floats[0] if floats else torch.float32
    return [torch.int64, real] if np.issubdtype(x.dtype, np.integer) else [real]


def _graph(
    module: torch.nn.Module, x: torch.Tensor, *, train: bool
) -> tuple[Graph, dict[str, NDArray[Any]]]:
    """Return the forward pass of a mode, and the constants that it holds."""
    module.train(train)
    try:
        exported = _exported(module, x)
        # No decompositions: layers stay whole, and changed buffers become outputs.
        exported = exported.run_decompositions({})
        exported = _without_unknown(exported)
    except FedMomError:
        raise
    except Exception as error:
        raise FedMomError(
            f"The PyTorch module cannot be exported by torch.export: {_said(error)}. Its forward"
            " must neither depend on the values of tensors (use torch.where in place of if) nor on"
            f" the size of the batch; or {WAY_OUT}."
        ) from error
    return _plain(exported, module)


def _exported(module: torch.nn.Module, x: torch.Tensor) -> Any:
    """Trace a module, for batches of any size."""
    sizes = ({0: torch.export.Dim.DYNAMIC},)
    try:
        with _quiet():
            return torch.export.export(module, (x,), dynamic_shapes=sizes)
    except Exception:
        # Slower, by reading the code: it may have len(x), which a trace takes for a fixed number.
        with contextlib.suppress(Exception), _quiet():
            return torch.export.export(module, (x,), dynamic_shapes=sizes, strict=True)
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing of what PyTorch prints when a trace fails: pages of its intermediate code."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


def _without_unknown(exported: Any) -> Any:
    """Decompose the operations that are not known into others, if PyTorch knows how."""
    standard = torch.export.default_decompositions()
    calls = (n.target for n in exported.graph.nodes if n.op == "call_function")
    unknown = {target for target in calls if table.find(_op(target)) is None}
    chosen = {target: standard[target] for target in unknown if target in standard}
    return exported.run_decompositions(chosen) if chosen else exported


def _plain(exported: Any, module: torch.nn.Module) -> tuple[Graph, dict[str, NDArray[Any]]]:
    signature = exported.graph_signature
    names = _canonical(module)
    inputs = {spec.arg.name: spec for spec in signature.input_specs}
    tensors = {
        node: _named(spec.target, names)
        for node, spec in inputs.items()
        if spec.kind in (_KINDS.PARAMETER, _KINDS.BUFFER, _KINDS.CONSTANT_TENSOR)
    }
    constants = {
        _named(name, names): _array(value)
        for name, value in exported.constants.items()
        if isinstance(value, torch.Tensor)
    }
    output = next(s.arg.name for s in signature.output_specs if s.kind is _OUTPUTS.USER_OUTPUT)
    changed = {
        _named(spec.target, names): spec.arg.name
        for spec in signature.output_specs
        if spec.kind is _OUTPUTS.BUFFER_MUTATION
    }
    given = next(node for node, spec in inputs.items() if spec.kind is _KINDS.USER_INPUT)
    nodes = tuple(_node(node) for node in _needed(exported, {output, *changed.values()}))
    return Graph(given, tensors, nodes, output, changed), constants


def _canonical(module: torch.nn.Module) -> dict[str, str]:
    """Return the first name of every tensor that has several, as tied weights do."""
    first: dict[int, str] = {}
    found = {}
    for tensors in (module.named_parameters, module.named_buffers):
        for name, tensor in tensors(remove_duplicate=False):
            found[name] = first.setdefault(id(tensor), name)
    return found


def _named(target: str, names: Mapping[str, str]) -> str:
    """Return a tensor's name in the user's module, which is inside another one here."""
    return names.get(target, target).removeprefix("module.")


def _needed(exported: Any, wanted: set[str]) -> list[Any]:
    """Return the operations that outputs depend on, in order."""
    found = []
    for node in reversed(exported.graph.nodes):
        if node.op == "call_function" and node.name in wanted:
            wanted |= {other.name for other in node.all_input_nodes}
            found.append(node)
    return found[::-1]


def _node(node: Any) -> Operation:
    known, where = table.find(_op(node.target)), _where(node)
    if known is None:
        raise FedMomError(
            f"The PyTorch module uses {_op(node.target)} ({where}), which FedMom does not know in"
            f' JAX. Register a function for it, @fedmom.torch_op("{_op(node.target)}"), or'
            f" {WAY_OUT}."
        )
    args = tuple(_arg(arg) for arg in node.args)
    if known == "aten.squeeze":
        args = args[0], _of_size_one(node)
    kwargs = {name: _arg(arg) for name, arg in node.kwargs.items() if name not in _IGNORED}
    return Operation(node.name, known, args, kwargs, where)


def _of_size_one(node: Any) -> tuple[int, ...]:
    """Return the axes that ``squeeze`` removes: never that of the batch, though it may have one."""
    sizes = node.args[0].meta["val"].shape
    given: Any = node.args[1] if len(node.args) > 1 else range(len(sizes))
    dims = [dim % len(sizes) for dim in ([given] if isinstance(given, int) else given)]
    return tuple(dim for dim in dims if isinstance(sizes[dim], int) and sizes[dim] == 1)


def _op(target: Any) -> str:
    """Return the name of an operation: ``aten.relu``, or ``python.add`` of sizes."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.__name__}"
    home = "python" if getattr(operator, target.__name__, None) is target else target.__module__
    return f"{'python' if home in ('math', 'torch') else home}.{target.__name__}"


def _arg(arg: Any) -> Any:
    """Return an argument as plain data."""
    if isinstance(arg, torch.fx.Node):
        return Ref(arg.name)
    if isinstance(arg, list | tuple):
        return tuple(_arg(part) for part in arg)
    if isinstance(arg, torch.dtype):
        return _name(arg)
    if arg is None or isinstance(arg, bool | int | float | str):
        return arg
    return None  # a device or a layout


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    found = tensor.detach().cpu().contiguous()
    if found.dtype == torch.bfloat16:  # which NumPy has from elsewhere
        return found.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return found.numpy().copy()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _ops(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def _where(node: Any) -> str:
    """Return the line of the user's code that an operation comes from."""
    lines = str(node.meta.get("stack_trace") or "").strip().splitlines()
    return lines[-1].strip() if lines else node.name


def _said(error: Exception) -> str:
    line = next((text for text in str(error).splitlines() if text.strip()), "no more is said")
    return f"{type(error).__name__}: {line.strip().rstrip('.')}"
