"""A deployment's folder: the app, what the server keeps to itself, and a folder for each device.

app/                  a Flower app: its settings are in pyproject.toml
server/               certificates, the devices' public keys, the SuperLink's records
devices/device-1/     to copy to the device: its key, the CA's certificate, device.toml
runs/                 a folder for each run
"""

import base64
import ipaddress
import json
import os
import re
import secrets
import shutil
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from fedmom.core.errors import FedMomError
from fedmom.core.files import (
    LARGEST_TOML,
    inner_folder,
    make_folder,
    naming,
    read_file,
    write_atomic,
)

INSIDE = "127.0.0.1:8000"  # where the SuperLink listens, if devices do not call it on loopback
SERVER, DEVICE = "server.toml", "device.toml"
TEMPLATES = {
    "pyproject.toml.txt": "app/pyproject.toml",
    "init.py.txt": "app/fedmom_app/__init__.py",
    "server_app.py.txt": "app/fedmom_app/server_app.py",
    "client_app.py.txt": "app/fedmom_app/client_app.py",
    "nginx.conf": "server/nginx.conf",
    "fedmom-server.service": "server/fedmom-server.service",
    "flower.toml": "server/flwr/config.toml",
}
MOST_DEVICES = 10_000


@dataclass(frozen=True)
class Deployment:
    """Where a deployment's things are, and how its server is reached.

    Args:
        path: Its folder.
        address: ``host:port``, as devices call the server.
        listen: ``host:port`` where the SuperLink listens.
        insecure: Without TLS and keys, which is for trials on one machine.
    """

    path: Path
    address: str
    listen: str
    insecure: bool

    @property
    def server(self) -> Path:
        """What stays with the server."""
        return self.path / "server"

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.path / "app"

    @property
    def keys(self) -> dict[str, Path]:
        """The public keys of devices, by their names."""
        return {file.stem: file for file in sorted((self.server / "keys").glob("*.pub"))}

    @property
    def token(self) -> Path:
        """The secret that the server's user shows to the SuperLink, and nobody else can read."""
        return self.server / "control.token"

    @property
    def ca(self) -> Path | None:
        """The CA's certificate; None without TLS."""
        return None if self.insecure else self.server / "ca.pem"


@dataclass(frozen=True)
class DeviceFolder:
    """What a device was given: which server to call, and with which key."""

    path: Path
    name: str
    address: str
    insecure: bool


def create(path: Path, address: str, devices: int, *, insecure: bool = False) -> Deployment:
    """Write a deployment's folder.

    Args:
        path: The folder, which must not hold a deployment.
        address: ``host:port``, as devices will call the server.
        devices: How many devices get a key.
        insecure: Without TLS and keys; only on loopback.

    Returns:
        The deployment.
    """
    host, _ = split_address(address)
    if insecure and not is_loopback(host):
        raise FedMomError(
            f"--insecure is for trials on one machine, and {host} is another. Leave it out."
        )
    if not 0 <= devices <= MOST_DEVICES:
        raise FedMomError(f"--devices {devices} must be from 0 to {MOST_DEVICES:,}.")
    if (path / "server" / SERVER).exists() or (path / "app").exists():
        raise FedMomError(f"{path} already holds a deployment. Choose another folder.")
    listen = address if is_loopback(host) else INSIDE
    deployment = Deployment(path, address, listen, insecure)
    new = [part for part in ("app", "server", "devices", "runs") if not (path / part).exists()]
    try:
        with naming(path):
            _fill(deployment, devices)
    except BaseException:  # a full disk, Ctrl-C: the same folder can be given again
        for part in new:
            shutil.rmtree(path / part, ignore_errors=True)
        raise
    return deployment


def _fill(deployment: Deployment, devices: int) -> None:
    """Write the files of a new deployment."""
    from jinja2 import Environment, StrictUndefined

    host, port = split_address(deployment.address)
    for folder in ("app/fedmom_app", "server/keys", "server/flwr", "devices", "runs"):
        top, *below = folder.split("/")
        make_folder(Path(inner_folder(deployment.path / top), *below))
        inner_folder(deployment.path / folder)
    deployment.server.chmod(0o700)
    (deployment.path / "runs").chmod(0o700)
    if not deployment.insecure:
        from fedmom.flower import certificates

        hosts = dict.fromkeys([host, "localhost", "127.0.0.1"])
        certificates.write_server(deployment.server, list(hosts))
    write_token(deployment)
    values = {
        "server": deployment.server.resolve(),
        "folder": deployment.path.resolve(),
        "port": port,
        "devices": max(1, devices),
        "user": os.getuid() if hasattr(os, "getuid") else "",
        "python": sys.executable,
    }
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    for name, place in TEMPLATES.items():
        text = resources.files("fedmom.flower").joinpath("templates", name).read_text("utf-8")
        shown = environment.from_string(text).render(**vars(deployment) | values)
        write_atomic(deployment.path / place, shown.encode())
    facts = {key: getattr(deployment, key) for key in ("address", "listen", "insecure")}
    write_atomic(deployment.server / SERVER, tomli_w.dumps(facts).encode())
    for number in range(1, devices + 1):
        add_device(deployment, f"device-{number}")


def write_token(deployment: Deployment) -> None:
    """Make the server's secret, unless there is one, and let Flower's own commands know it."""
    from fedmom.flower.certificates import write_secret

    if not deployment.token.exists():
        write_secret(deployment.token, secrets.token_hex(32).encode())
    token = read_file(deployment.token)
    said = {"authn-type": b"oidc", "oidc-access-token": token, "oidc-refresh-token": b"none"}
    known = {
        f"flower.account-auth.{deployment.listen}.{key}": base64.b64encode(value).decode()
        for key, value in said.items()
    }
    # In YAML, of which JSON is a part: it is where `flwr login` would put it.
    file = inner_folder(deployment.server / "flwr") / "credentials.yaml"
    write_secret(file, json.dumps(known).encode())


def add_device(deployment: Deployment, name: str) -> Path:
    """Give a device a folder with its key; return the folder."""
    folder = inner_folder(deployment.path / "devices") / name
    folder.mkdir(parents=True)
    folder.chmod(0o700)  # the device will keep a copy of its data here
    if not deployment.insecure:
        from fedmom.flower import certificates

        keys = inner_folder(deployment.server / "keys")
        certificates.write_device(folder / "device.key", keys / f"{name}.pub")
        write_atomic(folder / "ca.pem", read_file(deployment.server / "ca.pem"))
    facts = {"server": deployment.address, "name": name, "insecure": deployment.insecure}
    write_atomic(folder / DEVICE, tomli_w.dumps(facts).encode())
    return folder


def open_deployment(path: Path) -> Deployment:
    """Return the deployment in a folder."""
    file = path / "server" / SERVER
    needed = "a deployment. Make one: fedmom deploy init"
    facts = _facts(file, needed, addresses=("address", "listen"))
    if not is_loopback(split_address(facts["listen"])[0]):
        raise FedMomError(
            f"{file}: listen = {facts['listen']!r} would let others reach Flower's Control API,"
            f" which starts runs for any caller. Write {INSIDE!r}, and let devices in with nginx."
        )
    return Deployment(path.resolve(), facts["address"], facts["listen"], facts["insecure"])


def open_device(path: Path, server: str | None = None) -> DeviceFolder:
    """Return the folder that a device was given.

    Args:
        path: The folder.
        server: Another address of the server than the folder says.
    """
    file = path / DEVICE
    needed = "what a device needs. Copy it from the server's devices/"
    facts = _facts(file, needed, ("name",), () if server else ("server",))
    address = server or facts["server"]
    host, _ = split_address(address)
    if facts["insecure"] and not is_loopback(host):
        raise FedMomError(f"{file}: insecure is for trials on one machine, and {host} is another.")
    return DeviceFolder(path.resolve(), facts["name"], address, facts["insecure"])


def split_address(address: str, where: str = "") -> tuple[str, int]:
    """Return the host and the port of an address; ``where`` begins the message if it is none.

    Examples:
        >>> split_address("fl.example.org:9443")
        ('fl.example.org', 9443)
    """
    host, colon, port = address.rpartition(":")
    # Of ASCII alone: Python takes ² for a digit, and int() does not.
    allowed = host and address.isascii() and all(c.isalnum() or c in ".-" for c in host)
    if not (colon and allowed and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16):
        raise FedMomError(
            f"{where}{address!r} is not an address. Write host:port, such as fl.example.org:9443."
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _facts(
    file: Path, needed: str, texts: Sequence[str] = (), addresses: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a file says, which must have some texts and addresses."""
    try:
        facts = tomllib.loads(read_file(file, LARGEST_TOML).decode())
    except FileNotFoundError:
        raise FedMomError(f"{file.parent} does not hold {needed}.") from None
    except (ValueError, RecursionError) as error:
        raise FedMomError(f"{file} is not valid TOML: {error}.") from None
    for key in (*texts, *addresses):
        if not isinstance(facts.get(key), str) or not facts[key]:
            raise FedMomError(f"{file} has no text {key!r}. Restore it from a copy.")
    for key in addresses:
        split_address(facts[key], f"{file}, {key}: ")
    # Only true means no TLS, not "false" or 0.
    if not isinstance(facts.setdefault("insecure", False), bool):
        raise FedMomError(f"{file}: insecure must be true or false, not {facts['insecure']!r}.")
    return facts
