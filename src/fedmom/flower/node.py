"""A SuperNode for training, as ``fedmom deploy device`` starts it: Flower's own, in less time.

Flower's SuperNode looks for messages every three seconds and starts a new Python for each of them,
which costs seconds more. This one looks often during a run and has a worker that has loaded
everything: each message is still handled in a new process, forked from it. The worker sleeps until
it is called through a pipe, where Flower's would ask many times a second.

Flower's notices after a minute that a client's process has died, and never that it hangs; its
Runtime API gives work to any user of the machine. This one reports a process that has died at once,
ends one whose time is over, and gives work to who knows the device's own key. It says when the
server does not answer, and when it does again.
"""

import contextlib
import mmap
import os
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Error

from fedmom.core.files import append
from fedmom.flower.ending import how_it_ended, tell_failed

EAGER_SECONDS = 30.0  # after a message: the next one is likely to come soon
EAGER_LOOKS, LOOKS_FOR_REPLY = 0.25, 0.05  # seconds between looks
CALL_AGAIN = 0.5  # seconds after which a call is repeated, in case that nobody took the message
MOST_CALLS = 4096  # that are answered at once
CLIENT_TASK = "flwr-clientapp"
FOLDER = "FEDMOM_DEVICE"  # the variable that names the device's folder
SAID = "device.log"
SECONDS_OVERDUE = 5.0  # of a client's process beyond its message's time
SECONDS_WITHOUT_ANSWER = 5.0  # of the server, before the owner is told


class EagerTime:
    """The module ``time``, as the SuperNode's loop sees it: its pauses are shorter in a run.

    It sleeps half a second while it waits for its own client's reply, and three when there is
    nothing to do.

    Args:
        call: Called while it waits: there is a message to be handled.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._busy = self._called = -EAGER_SECONDS
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep as long as makes sense."""
        now = time.monotonic()
        if seconds < 1:
            if now - self._busy > 2 * LOOKS_FOR_REPLY or now - self._called > CALL_AGAIN:
                self._call()
                self._called = now
            self._busy = now
            time.sleep(LOOKS_FOR_REPLY)
        else:
            time.sleep(EAGER_LOOKS if now - self._busy < EAGER_SECONDS else seconds)


class Connection:
    """Says when the server does not answer, and when it does again.

    Args:
        say: Told of it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since: dict[int, float] = {}  # of a thread: when it has begun to wait for an answer
        self._lost = False
        threading.Thread(target=self._watch, daemon=True).start()

    def call(self, unary: Callable[..., Any], client: Any, **request: Any) -> Any:
        """Make a request as Flower's client does."""
        import httpx

        thread = threading.get_ident()
        if "object" not in request["path"]:  # parts of a model, which may take long
            self._since[thread] = time.monotonic()
        try:
            answer = unary(client, **request)
        except httpx.TransportError as error:
            if "ssl" not in str(error).lower():  # the program ends, and says why
                self._lose(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._since.pop(thread, None)
        if self._lost:
            self._lost = False
            self._say("The server answers again.")
        return answer

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            waiting = min([*self._since.values()], default=time.monotonic())
            if time.monotonic() - waiting > SECONDS_WITHOUT_ANSWER:
                self._lose(f"no answer in {SECONDS_WITHOUT_ANSWER:.0f} s")

    def _lose(self, why: str) -> None:
        if self._lost:
            return
        self._lost = True
        plain = "--insecure" in sys.argv and "disconnected" in why
        hint = " This device uses no TLS, and the server may want it." if plain else ""
        self._say(f"The server does not answer ({why}). Trying again.{hint}")


def main() -> None:
    """Run a SuperNode with the command line of ``flower-supernode``, and its worker."""
    parent = os.getppid()
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    port, secret = sys.argv[sys.argv.index("--port") + 1], _secret()
    worker = [sys.executable, "-m", "fedmom.flower.node", "--work", f"127.0.0.1:{port}"]
    worker += [str(os.getpid()), f"/dev/fd/{secret}"]
    # It ends with this process, for then the pipe is closed.
    working = subprocess.Popen(worker, stdin=subprocess.PIPE, pass_fds=[secret])
    threading.Thread(target=_end_with, args=(working,), daemon=True).start()
    setattr(start_client_internal, "time", EagerTime(_caller(working)))  # noqa: B010
    finish = InMemoryNodeState.finish_task
    setattr(InMemoryNodeState, "finish_task", _finishing(finish))  # noqa: B010
    unary, connection = FleetHttpClient._unary_unary, Connection(say)
    setattr(FleetHttpClient, "_unary_unary", _method(partial(connection.call, unary)))  # noqa: B010
    sys.argv += ["--isolation", "process", "--superexec-auth-secret-file", f"/dev/fd/{secret}"]
    start_parent_process_monitor(parent)  # it ends with who has started it
    flower_supernode()


def _secret() -> int:
    """Return a file without a name, with what this process and its worker know each other by."""
    with tempfile.TemporaryFile() as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        return os.dup(file.fileno())


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as one that is a method where a class has it."""
    return lambda self, **request: function(self, **request)


def _finishing(finish: Callable[..., bool]) -> Callable[..., bool]:
    """Return a way to finish tasks in which one that failed without a reply has one, of its end."""
    from flwr.common.constant import ErrorCode, SubStatus

    def finished(state: Any, task_id: int, sub_status: str, details: str) -> bool:
        done = finish(state, task_id, sub_status, details)
        if done and sub_status == SubStatus.FAILED:
            (task,) = state.get_tasks(task_ids=[task_id])
            with state.lock_msg_store:
                for entry in state.msg_store.values():  # those that it has not come to take, too
                    if entry.message.metadata.run_id == task.run_id:
                        entry.is_retrieved |= not entry.message.metadata.reply_to_message_id
            state._store_error_replies({task.run_id}, Error(ErrorCode.CLIENT_APP_CRASHED, details))
        return done

    return finished


def say(text: str) -> None:
    """Tell the device's owner."""
    if folder := os.environ.get(FOLDER):
        note(Path(folder) / SAID, text)


def note(file: Path, text: str) -> None:
    """Add a text to a log, with the time."""
    append(file, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode(errors="replace"))


def _caller(worker: "subprocess.Popen[bytes]") -> Callable[[], None]:
    """Return a function that wakes the worker up; calls that find the pipe full are not needed."""
    assert worker.stdin is not None
    pipe = worker.stdin.fileno()
    os.set_blocking(pipe, False)

    def call() -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(pipe, b".")

    return call


def _end_with(worker: "subprocess.Popen[bytes]") -> None:
    """End this process when its worker has: nobody would handle its messages."""
    worker.wait()
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class ClientProcess:
    """A client's process.

    Args:
        pid: The process.
        token: What it shows to the SuperNode.
        late: When its message's time is over, which the process writes itself.
    """

    pid: int
    token: str
    late: mmap.mmap
    ended: str = field(default="")

    def is_late(self) -> bool:
        """Return whether its time is over, on the clock that all processes share."""
        (when,) = struct.unpack("d", self.late[:8])
        return bool(when and time.monotonic() > when + SECONDS_OVERDUE)


def work(address: str, parent: int, secret: Path) -> None:
    """Handle a SuperNode's messages, each in a process forked from this one, whenever it calls.

    Args:
        address: The SuperNode's Runtime API.
        parent: The SuperNode's process; a client's process ends with it.
        secret: The file of the key that the SuperNode gives work to.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime import run_clientapp as handler

    # What ends the SuperNode is sent to all of its group. Were this process to end first, the
    # SuperNode would not come to tell the server that the device leaves.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    setattr(handler, "Error", by_name)  # noqa: B010
    _load()
    key, methods = secret.read_bytes(), ["/flwr.proto.Runtime/AcquireTask"]
    client = RuntimeHttpClient.from_server_address(
        address,
        True,
        None,
        [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=key, protected_methods=methods),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    request = AcquireTaskRequest(supported_task_types=[CLIENT_TASK])
    clients: dict[int, ClientProcess] = {}
    while os.read(0, MOST_CALLS):
        # All that there are: a message of a run that died meanwhile has a task, too, whose process
        # waits for content that never comes.
        while (task := client.AcquireTask(request)).HasField("task") and task.token:
            late = mmap.mmap(-1, 8)  # shared with the process
            pid = os.fork()
            if pid == 0:
                pull = handler.pull_task_input
                setattr(handler, "pull_task_input", lambda it: _timed(pull(it), late))  # noqa: B010, B023
                handler.run_clientapp(address, task.token, True, parent_pid=parent)
            clients[pid] = ClientProcess(pid, task.token, late)
        _look_after(clients, address)


def _timed(taken: Any, late: mmap.mmap) -> Any:
    """Write down until when a message is to be answered, and return it with what came along."""
    late[:8] = struct.pack("d", time.monotonic() + taken[0].metadata.ttl)
    return taken


def _look_after(clients: dict[int, ClientProcess], address: str) -> None:
    """End processes whose time is over, and report those that have died."""
    for it in clients.values():
        if it.is_late() and not it.ended:
            it.ended = "its time was over, and its process was ended"
            os.kill(it.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # there are none
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            it, code = clients.pop(found[0]), os.waitstatus_to_exitcode(found[1])
            if not code:
                continue
            why = it.ended or how_it_ended(code)
            with contextlib.suppress(Exception):  # it has told so itself
                tell_failed(address, it.token, why)
                say(f"It failed: {why}. The server was told.")
            it.late.close()


def by_name(code: int, reason: str) -> Error:
    """Return an error as a server is told of it: Flower's text of an exception is cut to its type.

    Args:
        code: Flower's code of the error.
        reason: Flower's text: for an exception, its type, a colon, and what it says, which may
            be data or paths.
    """
    return Error(code, reason.partition(":<")[0])


def _load() -> None:
    """Load what clients need. JAX starts no thread before it computes, so forks are safe."""
    import warnings

    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    from fedmom.core.compilation import prepare_process

    prepare_process()
    import fedmom.experiments.build
    import fedmom.flower.device
    import fedmom.runtimes.devices.client  # noqa: F401

    # JAX warns at every fork, since it cannot know that it has not been used yet.
    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
