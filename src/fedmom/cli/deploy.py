"""The commands that put a run on real devices: init, server, device, run, status."""

import itertools
from pathlib import Path
from typing import Any

import click

from fedmom.cli.output import FOLDER, OUT, note, say, show_result, told_at_interrupt
from fedmom.cli.setting_options import gather, setting_options
from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.experiments import results
from fedmom.flower import layout


@click.group("deploy")
def deploy_commands() -> None:
    """Train on real devices, through Flower.

    \b
    fedmom deploy init fl --devices 3         an app, certificates, and a folder for each device
    fedmom deploy server fl                   on the server: until Ctrl-C
    fedmom deploy device device-1 --data ...  on each device: until Ctrl-C
    fedmom deploy run fl --rounds 20          on the server: a run
    fedmom deploy status fl                   who is online, and run status
    """
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise FedMomError(
            "fedmom deploy needs Flower, which is an extra: pip install 'fedmom[flower]'."
        )


@deploy_commands.command()
@click.argument("folder", type=FOLDER)
@click.option("--devices", type=int, default=2, help="How many get a key.")
@click.option(
    "--address",
    default="127.0.0.1:8443",
    metavar="HOST:PORT",
    help="Address at which devices reach the server.",
)
@click.option("--insecure", is_flag=True, help="No TLS, no keys: for trials on one machine.")
def init(folder: Path, devices: int, address: str, insecure: bool) -> None:
    """Write a deployment: a Flower app, certificates, and a folder for each device.

    \b
    fedmom deploy init fl --devices 3
    fedmom deploy init fl --devices 3 --address fl.example.org:9443
    """
    deployment = layout.create(folder, address, devices, insecure=insecure)
    OUT.print(f"App, with the settings of runs: {deployment.app / 'pyproject.toml'}")
    if devices:
        OUT.print(f"Copy each folder below {folder / 'devices'} to its device, and nowhere else.")
    OUT.print(f"Start the server: fedmom deploy server {folder}")
    if not layout.is_loopback(layout.split_address(address)[0]):
        OUT.print(
            f"Its SuperLink listens on {deployment.listen} only. Let devices in with nginx:"
            f" nginx -c {deployment.server.resolve() / 'nginx.conf'}"
        )


@deploy_commands.command("add-device")
@click.argument("folder", type=FOLDER)
@click.argument("name")
def add_device(folder: Path, name: str) -> None:
    """Give one more device a key. A server that is running lets it in within seconds.

    To shut a device out, delete its public key, server/keys/NAME.pub.

    \b
    fedmom deploy add-device fl kitchen
    """
    deployment = layout.open_deployment(folder)
    if slug(name) != name or not name or name.startswith("."):
        raise FedMomError(f"{name!r} cannot name a device. Use letters, digits and - or _.")
    if (deployment.path / "devices" / name).exists():
        raise FedMomError(f"Device {name} already exists. Choose another name.")
    OUT.print(f"Copy this folder to the device: {layout.add_device(deployment, name)}")


@deploy_commands.command()
@click.argument("folder", type=FOLDER)
def server(folder: Path) -> None:
    """Run the server of a deployment until Ctrl-C. It is restarted if it crashes.

    \b
    fedmom deploy server fl
    """
    from fedmom.flower.server import serve

    with told_at_interrupt("The server has stopped. Runs resume from their last checkpoint."):
        serve(layout.open_deployment(folder), say)


@deploy_commands.command()
@click.argument("folder", type=FOLDER)
@click.option("--data", required=True, help="This device's data: a path, or a dataset's name.")
@click.option("--client", help="Which client of the data this device is, if it has several.")
@click.option("--server", metavar="HOST:PORT", help="The server [default: as in device.toml].")
def device(folder: Path, data: str, client: str | None, server: str | None) -> None:
    """Take part with this device until Ctrl-C. Prints each request, and what leaves the device.

    \b
    fedmom deploy device device-1 --data mine.npz
    fedmom deploy device device-1 --data synthetic:clients=3 --client 0
    """
    from fedmom.flower.device import participate

    with told_at_interrupt("This device no longer takes part."):
        participate(layout.open_device(folder, server), data, client, say)


@deploy_commands.command()
@click.argument("folder", type=FOLDER)
@setting_options(leave_out=["data", "diagnostics", "diagnostics_every", "tensorboard"])
@click.option("--out", type=FOLDER, help="The run's folder; a run in it is resumed.")
def run(folder: Path, file: Path | None, out: Path | None, **options: Any) -> None:
    """Train on the devices of a deployment, whose server must be running.

    The settings are those of the app's pyproject.toml; options override them.

    \b
    fedmom deploy run fl --rounds 50
    """
    from fedmom.flower.server import follow

    deployment = layout.open_deployment(folder)
    values = gather(file, options)
    new = (deployment.path / "runs" / f"run-{number}" for number in itertools.count(1))
    place = (out or next(path for path in new if not path.exists())).resolve()
    resume = f"fedmom deploy run {folder} --out {place}"
    with told_at_interrupt(f"Stopped; nothing is lost. Resume with: {resume}"):
        follow(deployment, place, values, say, note)
    show_result(results.read(place))
    OUT.print(f"Run folder: {place}")


@deploy_commands.command()
@click.argument("folder", type=FOLDER)
def status(folder: Path) -> None:
    """Show which devices of a deployment are online, and the status of its runs.

    \b
    fedmom deploy status fl
    """
    from fedmom.flower.control import Control
    from fedmom.reports import result_tables

    deployment = layout.open_deployment(folder)
    with Control(deployment) as control:
        nodes = control.nodes()
    rows = [[n.name, "online" if n.online else "offline", n.since[:19]] for n in nodes]
    OUT.print(result_tables.rich_table(("device", "is", "since (UTC)"), rows))
    folders = sorted(p.parent for p in (deployment.path / "runs").glob("*/config.toml"))
    for found in results.find(folders) if folders else []:
        say(f"{found.path}: {found.done} of {found.config.rounds} rounds, {found.status}")
