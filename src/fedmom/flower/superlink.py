"""A deployment's SuperLink, as ``fedmom deploy server`` starts it: Flower's own, closed to others.

Flower serves its Control and Runtime APIs to whoever reaches the port, and the port is open to
every user of the machine. Here both ask for the secret in ``server/control.token``, which only the
server's user can read: the Control API as the token of an account, the Runtime API as that of
Flower's SuperExec. Tokens of server apps are not in command lines, which all users can see. A
server app that was killed is reported at once. A key that was removed may be registered again.
"""

import contextlib
import importlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmom.flower.ending import how_it_ended, tell_failed

SUPEREXEC = "--superexec"
SECRET = "--superexec-auth-secret-file"  # Flower's option, for both programs
TLS = "--ssl-ca-certfile"


def main() -> None:
    """Run a SuperLink with the command line of ``flower-superlink``, and its SuperExec."""
    parent = os.getppid()
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.app_utils import start_parent_process_monitor

    # The package has a function of the module's name.
    flower_superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    token = Path(_option(SECRET)).read_text()
    owner = _owner_plugin(token)
    setattr(flower_superlink, "load_control_authn_plugin", lambda: owner)  # noqa: B010
    setattr(SqlLinkState, "create_node", _letting_in_again(SqlLinkState.create_node))  # noqa: B010
    start_parent_process_monitor(parent)
    address = f"{_option('--host')}:{_option('--port')}"
    command = [sys.executable, "-m", "fedmom.flower.superlink", SUPEREXEC]
    command += ["--runtime-api-address", address, SECRET, _option(SECRET)]
    command += ["--root-certificates", _option(TLS)] if TLS in sys.argv else ["--insecure"]
    starter = subprocess.Popen([*command, "--parent-pid", str(os.getpid())])
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    sys.argv += ["--isolation", "process"]
    flower_superlink.flower_superlink()


def _option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def _end_with(starter: "subprocess.Popen[bytes]") -> None:
    """End this process when what starts its server apps has ended: the server starts both anew."""
    starter.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _owner_plugin(token: str) -> Any:
    """Return Flower's account authentication with one account, that of who has the token."""
    from flwr.common.constant import ACCESS_TOKEN_KEY
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

    class OwnerPlugin(NoOpControlAuthnPlugin):
        def validate_tokens_in_metadata(
            self, metadata: Sequence[tuple[str, str | bytes]]
        ) -> tuple[bool, Any]:
            given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
            if not secrets.compare_digest(given.encode(), token.encode()):
                return False, None
            return super().validate_tokens_in_metadata(metadata)

        def refresh_tokens(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[Any, Any]:  # noqa: ARG002
            return None, None

    return OwnerPlugin()


def _letting_in_again(create_node: Callable[..., int]) -> Callable[..., int]:
    """Return a way to register nodes for which a key that was removed is as good as new.

    Flower keeps the keys of removed nodes, and registers none of them again.
    """
    from flwr.supercore.constant import NodeStatus
    from flwr.supercore.state.schema.linkstate_models import Node
    from sqlalchemy import update

    def create(
        state: Any, owner_aid: str, owner_name: str, public_key: bytes, *a: Any, **k: Any
    ) -> int:
        removed = Node.public_key == public_key, Node.status == NodeStatus.UNREGISTERED
        with state.session() as session:
            free = b"removed " + secrets.token_bytes(16)
            session.execute(update(Node).where(*removed).values(public_key=free))
        return create_node(state, owner_aid, owner_name, public_key, *a, **k)

    return create


def execute() -> None:
    """Run a SuperExec with the command line of ``flower-superexec``."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import SubprocessExecutor

    setattr(SubprocessExecutor, "launch", lambda _, spec: _launch(spec))  # noqa: B010
    flower_superexec()


def _launch(spec: Any) -> Any:
    """Start a server app; its token is in a file without a name, which it inherits."""
    from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND
    from flwr.supercore.superexec.executor import LaunchResult

    kind = spec.task_type
    with tempfile.TemporaryFile() as file:
        file.write(spec.token.encode())
        file.flush()
        args = [TASK_TYPE_TO_COMMAND[kind], TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[kind]]
        args += [spec.runtime_api_address, "--token-file", f"/dev/fd/{file.fileno()}"]
        args += ["--parent-pid", str(spec.parent_pid)]
        root = spec.root_certificates_path
        args += ["--insecure"] if spec.insecure else ["--root-certificates", root]
        process = subprocess.Popen(args, pass_fds=[file.fileno()])
    threading.Thread(target=_watch, args=(process, spec), daemon=True).start()
    return LaunchResult.accepted()


def _watch(process: "subprocess.Popen[bytes]", spec: Any) -> None:
    """Tell the SuperLink when a server app has died: it would notice after a minute."""
    if code := process.wait():
        root = None if spec.insecure else Path(spec.root_certificates_path).read_bytes()
        with contextlib.suppress(Exception):  # it has told so itself, or the SuperLink has ended
            tell_failed(spec.runtime_api_address, spec.token, how_it_ended(code), root)


if __name__ == "__main__":
    if sys.argv[1:2] == [SUPEREXEC]:
        del sys.argv[1]
        execute()
    else:
        main()
