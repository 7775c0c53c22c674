"""Loops over time with fewer and larger products.

The gradient of a recurrent layer's weights is a sum over steps. JAX adds to it at every step of the
loop: T small products, and T passes over the sum. Here the loop returns the factors of all steps
instead, and one product after it is the sum. Weights that a step needs turned over are laid out so
once, before the loop.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from fedmom.core.fusion import kernel
from fedmom.models.rewriting.walk import bound

ADDED = ("add_any", "add")
# What a sum over steps may be taken through: these move numbers, or change their sign.
MOVED = ("transpose", "reshape", "squeeze", "slice", "split", "copy", "neg")


class Term(NamedTuple):
    """A product, and what brings it to its place, with the output that is taken of each."""

    product: JaxprEqn
    moves: list[tuple[JaxprEqn, Var]]


def scan(*inputs: Any, jaxpr: ClosedJaxpr, **params: Any) -> list[Any] | None:
    """Return what ``lax.scan`` returns, computed with products of all steps at once."""
    body = _Body(jaxpr.jaxpr, params["num_consts"], params["num_carry"])
    sums, weights = body.sums(), body.weights()
    if not (sums or weights):
        return None
    consts, first, xs = body.parted(inputs)
    given = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    given |= dict(zip(body.consts + body.carry, consts + first, strict=True))
    once = {w: turned(given[w]) for w in weights.values()}
    kept = [i for i in range(len(first)) if i not in sums]
    products = products_of(sums)
    factors = body.factors(products)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
        known = given | dict(zip(body.xs, x, strict=True))
        known |= {body.carry[i]: value for i, value in zip(kept, carry, strict=True)}
        for equation in body.jaxpr.eqns:
            values = [_read(known, v) for v in equation.invars]
            if w := weights.get(id(equation)):
                outputs: Sequence[Any] = [_by_turned(equation, values[0], once[w])]
            else:
                outputs = bound(equation, values)
            known |= dict(zip(equation.outvars, outputs, strict=True))
        results = [_read(known, v) for v in body.jaxpr.outvars]
        of_step = results[len(first) :], [known[factor] for factor in factors]
        return [results[i] for i in kept], of_step

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, (ys, made) = lax.scan(step, [first[i] for i in kept], xs, **options)
    known = dict(zip(body.xs, xs, strict=True))
    known |= dict(zip(factors, made, strict=True))
    whole = {id(p): _of_all_steps(p, *(known[body.same(v)] for v in p.invars)) for p in products}
    for i, terms in sums.items():
        last.insert(i, first[i] + sum(_moved(whole[id(t.product)], t.moves) for t in terms))
    return [*last, *ys]


def products_of(sums: dict[int, list[Term]]) -> list[JaxprEqn]:
    """Return the products of all terms, each once."""
    return list({id(t.product): t.product for terms in sums.values() for t in terms}.values())


class _Body:
    """The program of a step."""

    def __init__(self, jaxpr: Jaxpr, consts: int, carry: int) -> None:
        self.jaxpr = jaxpr
        self._ends = consts, consts + carry
        self.consts, self.carry, self.xs = self.parted(jaxpr.invars)
        self._made: dict[Any, JaxprEqn] = {
            v: equation for equation in jaxpr.eqns for v in equation.outvars
        }
        self._same = dict(self._equal())
        self._read = [v for equation in jaxpr.eqns for v in equation.invars] + jaxpr.outvars

    def _equal(self) -> Iterator[tuple[Var, Var]]:
        """Yield values that the same concatenation makes, as the gates' gradients are in flax."""
        first: dict[Any, Var] = {}
        for equation in self.jaxpr.eqns:
            if equation.primitive.name == "concatenate":
                what = (equation.params["dimension"], *map(id, equation.invars))
                yield equation.outvars[0], first.setdefault(what, equation.outvars[0])

    def parted(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Divide what belongs to the inputs: constants, carried values, and what steps read."""
        start, end = self._ends
        return list(inputs[:start]), list(inputs[start:end]), list(inputs[end:])

    def sums(self) -> dict[int, list[Term]]:
        """Return the carried values, by number, that are sums of products and nothing else."""
        found = {i: terms for i in range(len(self.carry)) if (terms := self._sum(i))}
        needed = self._behind(v for i, v in enumerate(self.jaxpr.outvars) if i not in found)
        found = {
            i: terms
            for i, terms in found.items()
            if all(needed.isdisjoint(term.product.outvars) for term in terms)
        }
        products = products_of(found)
        # What is kept of a step must not be more than what it adds up.
        kept = sum(map(_size, self.factors(products)))
        return found if kept <= sum(_size(product.outvars[0]) for product in products) else {}

    def factors(self, products: list[JaxprEqn]) -> list[Any]:
        """Return what must be kept of a step, each value once."""
        found = [self.same(v) for product in products for v in product.invars]
        return list(dict.fromkeys(v for v in found if v not in self.xs))

    def same(self, v: Any) -> Any:
        """Return the first value that is computed as this one is."""
        return self._same.get(v, v)

    def _sum(self, i: int) -> list[Term]:
        """Return what is added to a carried value; nothing if it is read or changed otherwise."""
        terms, todo, times = [], [self.jaxpr.outvars[i]], 0
        while todo:
            v = todo.pop()
            if v is self.carry[i]:
                times += 1
            elif self._is(v, ADDED) and self._uses(v) == 1:
                todo += self._made[v].invars
            elif term := self._term(v):
                terms.append(term)
            else:
                return []
        return terms if times == self._uses(self.carry[i]) == 1 else []

    def _term(self, v: Any) -> Term | None:
        moves: list[tuple[JaxprEqn, Any]] = []
        while self._is(v, MOVED):
            moves.insert(0, (self._made[v], v))
            v = self._made[v].invars[0]
        if not self._is(v, ("dot_general",)):
            return None
        constant = self.consts + self.jaxpr.constvars
        if any(isinstance(f, Literal) or f in constant for f in self._made[v].invars):
            return None
        return Term(self._made[v], moves)

    def _is(self, v: Any, names: Sequence[str]) -> bool:
        """Return whether a value is the result of one of these operations."""
        known = not isinstance(v, Literal) and v in self._made
        return known and self._made[v].primitive.name in names

    def _uses(self, v: Any) -> int:
        return sum(other is v for other in self._read)

    def _behind(self, outputs: Any) -> set[Var]:
        """Return all that is needed to compute the outputs."""
        todo, seen = list(outputs), set()
        while todo:
            v = todo.pop()
            if not isinstance(v, Literal) and v not in seen:
                seen.add(v)
                todo += self._made[v].invars if v in self._made else ()
        return seen

    def weights(self) -> dict[int, Any]:
        """Return the constants that a product takes turned over, by the product's identity."""
        found = {}
        for equation in self.jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                x, w = equation.invars
                (_, summed), _ = equation.params["dimension_numbers"]
                small = _size(x) <= _size(w)  # or turning over the weights does not matter
                if w in self.consts and small and summed == (1,) and len(_shape(w)) == 2:
                    found[id(equation)] = w
        return found


@kernel
def turned(weights: jax.Array) -> jax.Array:
    """Lay out the transpose."""
    return weights.T


def _shape(v: Any) -> tuple[int, ...]:
    return tuple(v.aval.shape)


def _size(v: Any) -> int:
    return math.prod(_shape(v))


def _read(known: dict[Var, Any], v: Any) -> Any:
    return v.val if isinstance(v, Literal) else known[v]


def _by_turned(equation: JaxprEqn, x: jax.Array, w: jax.Array) -> Any:
    """Compute a product, given its second factor turned over."""
    (summed, _), batch = equation.params["dimension_numbers"]
    numbers = {"dimension_numbers": ((summed, (0,)), batch)}
    return lax.dot_general_p.bind(x, w, **equation.params | numbers)


def _of_all_steps(product: JaxprEqn, a: jax.Array, b: jax.Array) -> Any:
    """Return the sum of a product over steps, which are the first axis of its factors."""
    summed, batch = (
        tuple(tuple(axis + 1 for axis in axes) for axes in pair)
        for pair in product.params["dimension_numbers"]
    )
    numbers = {"dimension_numbers": (((0, *summed[0]), (0, *summed[1])), batch)}
    return lax.dot_general_p.bind(a, b, **product.params | numbers)


def _moved(value: jax.Array, moves: list[tuple[JaxprEqn, Var]]) -> jax.Array:
    for equation, output in moves:
        value = bound(equation, [value])[equation.outvars.index(output)]
    return value
