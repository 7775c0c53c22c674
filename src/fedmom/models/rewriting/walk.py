"""A pass over a traced program that replaces operations by equal ones that are faster on a CPU.

The pass is applied to whole programs, after differentiation and ``vmap``. So replacements are plain
functions without derivatives of their own: gradients are operations like any other, and forward
mode and second derivatives are not affected.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# Takes the inputs and, by name, the parameters of an operation. Returns what the operation returns
# (a list where it has several results), or None where there is no better form.
Replacement = Callable[..., Any]
# Operations that are entered: their parameters hold programs, whose inputs and outputs stay.
ENTERED = {
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"),
    *("scan", "while", "cond", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
}


def rewritten(
    function: Callable[..., Any], replacements: Mapping[str, Replacement]
) -> Callable[..., Any]:
    """Return a function that computes the same, with replacements for some operations.

    On accelerators, and where JAX is of a version that the pass does not know, it is the function
    as it was.

    Args:
        function: Any function that JAX can trace. What is given by keyword is static.
        replacements: By the name of the operation's primitive. Of an operation that holds programs,
            such as ``scan``, the replacement is rewritten, too, until there is no better form.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **static: Any) -> Any:
        whole = functools.partial(function, **static)
        if jax.default_backend() != "cpu":
            return whole(*arguments)
        program, form = jax.make_jaxpr(whole, return_shape=True)(*arguments)
        if not contains(program, replacements):
            return whole(*arguments)
        better = replaced(program, replacements)
        if isinstance(better, Exception):
            return whole(*arguments)
        outputs = jax.core.eval_jaxpr(better.jaxpr, better.consts, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(form), outputs)

    return call


def replaced(
    program: ClosedJaxpr, replacements: Mapping[str, Replacement]
) -> ClosedJaxpr | Exception:
    """Return a program with replacements, or why there is none.

    JAX may have other programs than those that the pass knows. ``notices`` tells the user.
    """
    try:
        return _Walk(replacements).closed(program)
    except Exception as error:
        return error


def contains(program: ClosedJaxpr | Jaxpr, names: Mapping[str, Any]) -> bool:
    """Return whether a program, or one inside it, has operations of these names."""
    return any(equation.primitive.name in names for equation in operations(program))


def inside(equation: JaxprEqn) -> Iterator[ClosedJaxpr | Jaxpr]:
    """Yield the programs that an operation holds."""
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr | Jaxpr):
                yield each


def operations(program: ClosedJaxpr | Jaxpr) -> Iterator[JaxprEqn]:
    """Yield all operations of a program and of those inside it."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    for equation in jaxpr.eqns:
        yield equation
        for held in inside(equation):
            yield from operations(held)


def bound(equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """Compute one operation as it stands."""
    primitive: Any = equation.primitive
    found = primitive.get_bind_params(equation.params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # by version
    with equation.ctx.manager:  # its marks, such as those of ``kernel``
        outputs = primitive.bind(*functions, *inputs, **params)
    return outputs if primitive.multiple_results else [outputs]


class _Walk:
    def __init__(self, replacements: Mapping[str, Replacement]) -> None:
        self._replacements = replacements

    def closed(self, program: ClosedJaxpr) -> ClosedJaxpr:
        """Return the program with replacements, for the same inputs."""
        compute = functools.partial(self._computed, program.jaxpr, program.consts)
        return jax.make_jaxpr(compute)(*map(_form, program.in_avals))

    def _computed(self, jaxpr: Jaxpr, consts: Sequence[Any], *arguments: Any) -> list[Any]:
        """Compute a program, operation by operation."""
        known = dict(zip(jaxpr.constvars, consts, strict=True))
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(v: Any) -> Any:
            return v.val if isinstance(v, Literal) else known[v]

        for equation in jaxpr.eqns:
            inputs = [read(v) for v in equation.invars]
            outputs = self._replaced(equation, inputs) or bound(self._entered(equation), inputs)
            known |= dict(zip(equation.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _replaced(self, equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Compute an operation in a better form, if there is one."""
        name = equation.primitive.name
        if name not in self._replacements:
            return None
        replacement = self._replacements[name]
        if name in ENTERED:
            replacement = rewritten(replacement, self._replacements)
        with equation.ctx.manager:
            found = replacement(*inputs, **equation.params)
        if found is None:
            return None
        outputs = found if equation.primitive.multiple_results else [found]
        pairs = zip(outputs, equation.outvars, strict=True)
        return outputs if all(_alike(x, v.aval) for x, v in pairs) else None

    def _entered(self, equation: JaxprEqn) -> JaxprEqn:
        """Return an operation with replacements in the programs that it holds."""
        if equation.primitive.name not in ENTERED:
            return equation
        if not any(contains(program, self._replacements) for program in inside(equation)):
            return equation
        params = {name: self._parameter(value) for name, value in equation.params.items()}
        return equation.replace(params=params)

    def _parameter(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(self._parameter, value))
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            program = self.closed(ClosedJaxpr(value, ()))
            return value if program.consts else program.jaxpr  # it has no place for constants
        return value


def _form(aval: Any) -> Any:
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)  # type: ignore[no-untyped-call]


def _alike(output: Any, aval: Any) -> bool:
    """Return whether a replacement returns what the program around it expects."""
    found = output.shape, output.dtype, bool(output.weak_type)
    return found == (aval.shape, aval.dtype, bool(aval.weak_type))
