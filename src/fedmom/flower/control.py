"""The Control API of a deployment's server: device keys, runs, and who is online."""

import contextlib
import hashlib
import ssl
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedmom.core.errors import FedMomError
from fedmom.core.files import read_file
from fedmom.flower.certificates import public_key_bytes
from fedmom.flower.layout import Deployment


@dataclass(frozen=True)
class NodeStatus:
    """A device, as the SuperLink knows it."""

    name: str
    online: bool
    since: str


@dataclass(frozen=True)
class RunStatus:
    """A run, as the SuperLink knows it: ``completed``, ``failed``, ... and why."""

    status: str
    details: str


class KeyChanges(NamedTuple):
    """What became of the keys of devices: who is new, who is shut out, and what went wrong."""

    new: list[str]
    gone: list[str]
    faults: dict[str, str]  # by the device: a sentence


class _Bearer:
    """Shows a deployment's secret to its server.

    Args:
        deployment: The deployment.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._header = {}
        with contextlib.suppress(FileNotFoundError):  # before the server's first start
            self._header = {"Authorization": f"Bearer {read_file(deployment.token).decode()}"}

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the secret to a request."""
        context.request.headers.update(self._header)
        return call_next(context)


class Control:
    """The Control API of a deployment's SuperLink.

    Args:
        deployment: The deployment.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        try:
            self._client = ControlHttpClient.from_server_address(
                deployment.listen,
                deployment.insecure,
                None if deployment.ca is None else read_file(deployment.ca),
                [RuntimeVersionHttpInterceptor(component_name="flwr-cli"), _Bearer(deployment)],
            )
        except (ssl.SSLError, UnicodeError) as error:
            raise FedMomError(
                f"{deployment.ca} is not a certificate ({error}). Restore it from a copy."
            ) from None

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def is_up(self) -> bool:
        """Return whether the SuperLink answers."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.ListNodes(ListNodesRequest())
            return True
        return False

    def nodes(self) -> list[NodeStatus]:
        """Return the devices that may take part."""
        found = []
        for node in self._registered():
            online = node.status == "online"
            since = node.last_activated_at if online else node.last_deactivated_at
            found.append(NodeStatus(node.name or f"node {node.node_id}", online, str(since)))
        return found

    def update_keys(self) -> "KeyChanges":
        """Let the devices in whose public keys are in the folder, and no others.

        Each key is handled by itself, and those that are gone come first: whatever is wrong with
        another key, a device whose key was deleted is shut out. So is one whose key cannot be read.
        """
        nodes = {node.public_key: node for node in self._registered()}
        allowed: dict[bytes, str] = {}
        faults: dict[str, str] = {}
        folder = self._deployment.server / "keys"
        if not (self._deployment.insecure or folder.is_dir()):
            faults[""] = f"{folder} is not a folder: no device is let in. Restore it from a copy."
        for name, file in self._deployment.keys.items():
            try:
                allowed[public_key_bytes(file)] = name
            except (FedMomError, OSError) as error:
                faults[name] = str(error)
        new, gone = [], []
        # Without TLS there are no keys, and any process of this machine may take part.
        for key in () if self._deployment.insecure else nodes.keys() - allowed.keys():
            name = nodes[key].name or f"node {nodes[key].node_id}"
            with self._noted(faults, name, "could not be shut out"):
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=nodes[key].node_id))
                gone.append(name)
        for key in allowed.keys() - nodes.keys():
            with self._noted(faults, allowed[key], "could not be let in"):
                self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=allowed[key]))
                new.append(allowed[key])
        return KeyChanges(new, gone, faults)

    def start(self, values: dict[str, Any], app: Path | None = None) -> int:
        """Start a run; return its number.

        Args:
            values: Settings that replace those of the app.
            app: Another app than the deployment's own.
        """
        content = packed_app(app or self._deployment.app, values)
        with self._told():
            fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
            response = self._client.StartRun(StartRunRequest(fab=fab))
        if not response.HasField("run_id"):
            raise FedMomError("Flower did not start the run; server/superlink.log may say why.")
        return int(response.run_id)

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        with self._told():
            self._client.StopRun(StopRunRequest(run_id=run_id))

    def run(self, run_id: int) -> RunStatus:
        """Return the status of a run."""
        with self._told():
            found = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
        return RunStatus(found.sub_status or found.status, found.details)

    def log(self, run_id: int, after: float) -> Iterator[tuple[str, float]]:
        """Yield what a run prints, each with the time to continue from."""
        request = StreamLogsRequest(run_id=run_id, after_timestamp=after)
        with contextlib.suppress(httpx.HTTPError):  # the caller looks again
            for part in self._client.StreamLogs(request):
                yield part.log_output, part.latest_timestamp

    def _registered(self) -> list[Any]:
        with self._told():
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in found if node.status != "unregistered"]

    @contextlib.contextmanager
    def _noted(self, faults: dict[str, str], name: str, what: str) -> Iterator[None]:
        """Note what is refused for one device, and continue with the others."""
        try:
            with self._told():
                yield
        except FedMomError as error:
            faults[name] = f"{name} {what}. {error}"

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn network errors into sentences."""
        try:
            yield
        except httpx.HTTPError as error:
            why = (
                f"refused: {error.response.text[:300]}"
                if isinstance(error, httpx.HTTPStatusError)
                else f"does not answer ({type(error).__name__}). Start it: fedmom deploy server"
                f" {self._deployment.path}"
            )
            raise FedMomError(f"The server at {self._deployment.listen} {why}") from None


def packed_app(app: Path, values: dict[str, Any]) -> bytes:
    """Return an app as Flower sends it to devices, with some settings replaced."""
    project = _project(app)
    project["tool"]["flwr"]["app"]["config"] = settings_of(app) | values
    changed = tomli_w.dumps(project).encode()
    return build_fab_from_files({**collect_files(app), "pyproject.toml": changed})[0]


def settings_of(app: Path) -> dict[str, Any]:
    """Return the settings in an app's pyproject.toml."""
    return dict(_project(app)["tool"]["flwr"]["app"].get("config", {}))


def _project(app: Path) -> dict[str, Any]:
    try:
        project = tomllib.loads(read_file(app / "pyproject.toml").decode())
        project["tool"]["flwr"]["app"].get("config", {}).items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise FedMomError(f"{app / 'pyproject.toml'} is not a Flower app's: {error}.") from None
    return project
