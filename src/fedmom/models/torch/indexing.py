"""Operations that look entries up, or put them in place; and those that sort."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from fedmom.models.torch.table import op


@op("select")
def select(x: Any, dim: int, place: int) -> Any:
    """One entry along an axis."""
    return lax.index_in_dim(x, place, dim, keepdims=False)


@op("slice")
def slice_(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Entries from one to another along an axis."""
    return x[_along(x, dim, slice(start, end, step))]


@op("narrow")
def narrow(x: Any, dim: int, start: Any, length: Any) -> Any:
    """So many entries along an axis."""
    return lax.slice_in_dim(x, start, start + length, axis=dim)


@op("index")
def index(x: Any, places: Any) -> Any:
    """Entries at places, given for some axes."""
    return x[tuple(slice(None) if place is None else place for place in places)]


@op("index_select")
def index_select(x: Any, dim: int, places: Any) -> Any:
    """Entries at places along an axis."""
    return jnp.take(x, places, axis=dim)


@op("gather")
def gather(x: Any, dim: int, places: Any, **_: Any) -> Any:
    """Entries at places along an axis, for every other place."""
    return jnp.take_along_axis(x, places, dim)


@op("take_along_dim")
def take_along_dim(x: Any, places: Any, dim: int | None = None) -> Any:
    """Entries at places along an axis, or of all entries in a row."""
    return jnp.take_along_axis(x, places, dim)


@op("embedding")
def embedding(weight: Any, places: Any, padding: int = -1, *_: Any) -> Any:
    """Rows of a table; that of padding is not trained."""
    if padding >= 0:
        weight = weight.at[padding].set(lax.stop_gradient(weight[padding]))
    return jnp.take(weight, places, axis=0)


@op("embedding_bag", "embedding_bag.padding_idx", "_embedding_bag")
def embedding_bag(
    weight: Any,
    places: Any,
    offsets: Any,
    _scale: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    weights: Any = None,
    last: bool = False,
    padding: int | None = None,
) -> Any:
    """The sum, mean or maximum of the rows of each bag."""
    bags = len(offsets) - last
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(len(places)), side="right") - 1
    rows = jnp.take(weight, places, axis=0)
    counted = jnp.ones(len(places), bool)
    if padding is not None and padding >= 0:
        counted = places != padding
    if mode == 2:
        rows = jnp.where(counted[:, None], rows, -jnp.inf)
        found = jnp.full((bags, rows.shape[1]), -jnp.inf, rows.dtype).at[bag].max(rows)
        return jnp.where(jnp.isfinite(found), found, 0), None, None, None
    rows = rows if weights is None else rows * weights[:, None]
    zero = jnp.zeros((bags, rows.shape[1]), rows.dtype)
    total = zero.at[bag].add(jnp.where(counted[:, None], rows, 0))
    if mode == 1:
        count = jnp.zeros(bags, rows.dtype).at[bag].add(counted)
        total = total / jnp.maximum(count, 1)[:, None]
    return total, None, None, None


@op("one_hot")
def one_hot(places: Any, classes: int = -1) -> Any:
    """A row of 0 and 1 for every class."""
    if classes < 0:
        raise ValueError("one_hot needs num_classes")
    return (places[..., None] == jnp.arange(classes)).astype(places.dtype)


@op("slice_scatter")
def slice_scatter(
    x: Any, new: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Other entries from one place to another along an axis."""
    return x.at[_along(x, dim, slice(start, end, step))].set(new)


@op("select_scatter")
def select_scatter(x: Any, new: Any, dim: int, place: int) -> Any:
    """Another entry along an axis."""
    return x.at[_along(x, dim, place)].set(new)


@op("index_put", "_unsafe_index_put")
def index_put(x: Any, places: Any, new: Any, accumulate: bool = False) -> Any:
    """Other entries at places, or entries added there."""
    at = x.at[tuple(slice(None) if place is None else place for place in places)]
    return at.add(new) if accumulate else at.set(new)


@op("index_add")
def index_add(x: Any, dim: int, places: Any, new: Any, alpha: Any = 1) -> Any:
    """Entries added at places along an axis."""
    return x.at[_along(x, dim, places)].add(alpha * new)


@op("index_copy")
def index_copy(x: Any, dim: int, places: Any, new: Any) -> Any:
    """Other entries at places along an axis."""
    return x.at[_along(x, dim, places)].set(new)


@op("index_fill")
def index_fill(x: Any, dim: int, places: Any, value: Any) -> Any:
    """One value at places along an axis."""
    return x.at[_along(x, dim, places)].set(value)


@op("scatter")
def scatter(x: Any, dim: int, places: Any, new: Any) -> Any:
    """Other entries at places along an axis, for every other place."""
    return x.at[_for_every_other(x, dim, places)].set(_fitting(new, places))


@op("scatter_add")
def scatter_add(x: Any, dim: int, places: Any, new: Any) -> Any:
    """Entries added at places along an axis, for every other place."""
    return x.at[_for_every_other(x, dim, places)].add(_fitting(new, places))


@op("copy")
def copy(x: Any, new: Any, *_: Any) -> Any:
    """Other values in an array's form."""
    return jnp.broadcast_to(new, x.shape).astype(x.dtype)


@op("topk")
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, *_: Any) -> Any:
    """The largest entries and their places, or the smallest."""
    moved = jnp.moveaxis(x, dim, -1)
    values, places = lax.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


@op("sort")
def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """All entries in order, and their places."""
    places = argsort(x, dim, descending)
    return jnp.take_along_axis(x, places, dim), places


@op("argsort")
def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """The places of all entries in order."""
    return jnp.argsort(x, dim, descending=descending)


@op("bucketize")
def bucketize(x: Any, bounds: Any, *_: Any, right: bool = False, **__: Any) -> Any:
    """The interval of every number."""
    return jnp.searchsorted(bounds, x, side="right" if right else "left")


def _along(x: Any, dim: int, place: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * (dim % x.ndim), place)


def _for_every_other(x: Any, dim: int, places: Any) -> tuple[Any, ...]:
    grid = list(jnp.indices(places.shape, sparse=True))
    grid[dim % x.ndim] = places
    return tuple(grid)


def _fitting(new: Any, places: Any) -> Any:
    """Return the entries that places have; there may be more."""
    return new[tuple(map(slice, places.shape))] if getattr(new, "ndim", 0) else new
