"""What functions of names with options return is kept, until a name means something else."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_caches: list[Any] = []


def cached_by_name(function: Callable[P, T]) -> Callable[P, T]:
    """Let equal names with options give one object, so that runs share compiled programs."""
    made = lru_cache(maxsize=256)(function)
    _caches.append(made)
    return made  # type: ignore[return-value]


def forget_programs() -> None:
    """Compile anew: what programs were compiled with has other content by now."""
    import jax

    jax.clear_caches()  # type: ignore[no-untyped-call]


def forget() -> None:
    """Forget what names have meant: one of them means something else by now."""
    for made in _caches:
        made.cache_clear()
