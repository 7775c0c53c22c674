"""Ray for tests: whatever a test has started of it ends."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path


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


@contextlib.contextmanager
def started(command, first=signal.SIGKILL, **options):
    """Run a command beside the test; at the end it and all that it has started are ended.

    ``first`` is the signal that it gets, with a minute to end by itself.
    """
    process = subprocess.Popen(command, **options)
    family = {process.pid}
    try:
        yield process
    finally:
        family |= below(process.pid)
        process.send_signal(first)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        for each in family:
            if each == process.pid or is_alive(each):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def below(process):
    """Return the processes that a process has started, and those that they have."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = [process]
    for member in found:  # grows as it is read
        found += [child for child, parent in parents.items() if parent == member]
    return set(found[1:])


def is_alive(process):
    """Tell whether a process is there and has not ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"


def until(process, text, seconds=180):
    """Wait until a process has printed a text."""
    end, said = time.monotonic() + seconds, []
    for line in process.stdout:
        said.append(line)
        if text in line:
            return
        assert time.monotonic() < end
    raise AssertionError(f"{process.args} ended:\n{''.join(said)}")


def listening_at(processes):
    """Return the addresses that processes listen at, as /proc writes them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for process in processes:
        for place in Path(f"/proc/{process}/fd").glob("*"):
            with contextlib.suppress(OSError):
                found |= {sockets[name] for name in [str(place.readlink())] if name in sockets}
    return found
