"""Ray, if it is installed: started or joined without its noise, and what it raises."""

import contextlib
import logging
import os
import signal
import socket
import stat
import threading
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.progress import waiting

SECONDS_TO_ANSWER = 10.0  # for a cluster that is there
LOOPBACK, CLUSTERS = "127.0.0.1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_LOCK = threading.Lock()  # runs of a sweep begin together


def package() -> Any:
    """Return the package ``ray``, or say how to install it."""
    try:
        import ray
    except ImportError:
        raise FedMomError(
            "--runtime ray needs Ray, which is not installed: pip install 'fedmom[ray]'"
        ) from None
    return ray


def connect(address: str | None = None) -> Any:
    """Connect this process to a cluster, or start Ray on this machine; return ``ray``.

    A process that is connected already stays so.

    Args:
        address: ``host:port`` of the cluster's head, or ``auto`` for a cluster that this machine
            is a part of. None: the environment's RAY_ADDRESS, or else this machine alone.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None and address.startswith("ray://"):
        raise FedMomError(
            f"address={address}: run fedmom on a machine of the cluster, and give address=auto."
            " Ray's client protocol (ray://) is not supported."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:  # each takes Ray half a minute; one shows whether Ray listens
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    # Ray warns of a change to come in how it hides accelerators from actors that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray gives its workers less of a busy machine than all else there; here they are the work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray = package()
    with _LOCK:
        if not ray.is_initialized():
            _init(ray, address or "local")
    return ray


def _check_listens(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _check_token() -> None:
    """Warn about a token that other users can read, as Ray's own command writes it."""
    given = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(given) if given else Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):
        reachable = all(stat.S_IMODE(p.stat().st_mode) & 0o005 for p in (file.parent, file))
        if os.name == "posix" and reachable:
            warnings.warn(
                f"Other users of this machine can read {file}, and whoever has this token can run"
                f" programs on the cluster. Make another one, after: umask 077; rm {file}",
                stacklevel=2,
            )


def _no_cluster(address: str, error: Exception) -> FedMomError:
    return FedMomError(
        f"There is no Ray cluster to join at {address} ({_line(error)}). Start one with `ray"
        " start --head`; set RAY_AUTH_MODE=token if it asks for a token; or leave the address"
        " out to use this machine alone."
    )


def _init(ray: Any, address: str) -> None:
    alone = {"include_dashboard": False} if address == "local" else {}
    _check_listens(address)
    if not alone:
        _check_token()
    here = _on_loopback(ray) if alone else contextlib.nullcontext()
    label = "Starting Ray" if alone else f"Joining the Ray cluster at {address}"
    try:
        with _quietly(), here, waiting(label):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if alone:
            raise FedMomError(f"Ray did not start on this machine ({_line(error)}).") from None
        raise _no_cluster(address, error) from None
    except Exception as error:  # it has no type of its own for a start that takes too long
        raise FedMomError(
            f"Ray did not start ({_line(error)}). The machine may be too busy: try again."
        ) from None


@contextlib.contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Let all that Ray starts listen on this machine's loopback interface only.

    Ray does so where it is told that there are no clusters; the user's own word wins.
    """
    from ray._private import ray_constants

    if os.environ.setdefault(CLUSTERS, "0") != "0":
        yield
        return
    before = ray_constants.ENABLE_RAY_CLUSTER  # read when Ray was imported, perhaps by the user
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
    if (address := ray.util.get_node_ip_address()) != LOOPBACK:
        warnings.warn(
            f"Ray listens at {address}, so that other machines reach it. It asks them for a token"
            " if RAY_AUTH_MODE=token is set.",
            stacklevel=2,
        )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Start Ray without its warnings, and keep what this process does at SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # Ray leaves files to be collected. It starts programs by fork and exec, of which JAX
        # warns as of any fork; between the two, nothing of JAX runs.
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].removesuffix(".")


def machines(ray: Any) -> list[int]:
    """Return how many CPUs each machine of the cluster has."""
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def room(ray: Any, cpus: int) -> int:
    """Return how many actors with so many CPUs fit the machines: none lies on two of them."""
    return sum(machine // cpus for machine in machines(ray))


@lru_cache
def losses() -> tuple[type[Exception], ...]:
    """Return what is raised where an actor, its machine or what it sent was lost."""
    known = package().exceptions
    lost = known.RayActorError, known.NodeDiedError, known.ObjectLostError
    return *lost, known.OutOfMemoryError, known.WorkerCrashedError


def unwrapped(error: Exception) -> Exception:
    """Return the error that an actor's work raised, as if it had been raised here.

    Ray wraps it into one whose text is the actor's traceback; that goes along as a note.
    """
    cause = getattr(error, "cause", None)
    if not isinstance(cause, Exception):
        return error
    cause.add_note(f"On an actor of the cluster:\n{error}")
    return cause
