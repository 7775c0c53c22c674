"""Ray for tests: whatever a test has started of it ends."""

import contextlib
import gc
import sys
import warnings


@contextlib.contextmanager
def ray_ended():
    """Shut Ray down at the end, without the warnings of files that it leaves to be collected."""
    try:
        yield
    finally:
        if "ray" in sys.modules:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                sys.modules["ray"].shutdown()
                gc.collect()
