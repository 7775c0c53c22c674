"""Python's garbage collector, paused where it finds nothing."""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0
_was_on = True


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage meanwhile, in all threads.

    Imports and traced programs are many objects that stay, and looking through them again and
    again takes up to 0.1 s of a start.
    """
    global _pauses, _was_on
    with _lock:
        if _pauses == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_on:
                gc.enable()
