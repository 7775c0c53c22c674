"""The commands that show runs: report and watch."""

import webbrowser
from functools import partial
from pathlib import Path

import click

from fedmom.cli.output import FOLDER, OUT, page, say
from fedmom.core.errors import FedMomError
from fedmom.core.files import check_file


@click.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option(
    "--out",
    type=FOLDER,
    help="The page's file [default: report.html, in the folder if there is only one].",
)
@click.option(
    "--target",
    type=float,
    help="Test metric to count rounds to, such as an accuracy [default: the runner-up's best].",
)
def report(folders: tuple[Path, ...], out: Path | None, target: float | None) -> None:
    """Write one page about runs, comparisons and sweeps, in any mix, and its figures.

    The page is one file that needs no network. Runs that differ only in their seed are one curve,
    their mean, with its 95 % interval as a band.

    \b
    fedmom report runs/first
    fedmom report runs/compare runs/sweep --out all.html --target 0.7
    """
    from fedmom.core.progress import track
    from fedmom.experiments import results
    from fedmom.reports import run_page, sweep_page

    path = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    check_file(path, "--out", "report.html")
    found = results.find(folders)
    shares = {run.metric for run in found} == {"accuracy"}
    if target is not None and shares and not 0 <= target <= 1:
        raise FedMomError(f"--target {target:g} is not an accuracy. Use a number from 0 to 1.")
    view = sweep_page.of_folders(folders, found, target)
    figures = run_page.print_figures(view, path)
    for files in track(figures, "Figures", total=len(view.figures()), console=OUT):
        also = ", ".join(file.suffix[1:] for file in files[1:])
        OUT.print(f"Figure: {files[0]} (also {also})")
    page(run_page.write(view, path))


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--port", type=int, help="Port on this machine [default: 8477, or any free one].")
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
def watch(folder: Path, port: int | None, open_: bool) -> None:
    """Show a run, comparison or sweep in the browser while it runs, until Ctrl-C.

    The page is that of `fedmom report`, served to this machine only; new points appear by
    themselves.

    \b
    fedmom watch runs/first
    """
    from fedmom.reports import run_page
    from fedmom.reports.live import open_server

    run_page.live_view(folder)  # report a wrong folder here, not in the browser
    with open_server(partial(run_page.live_view, folder), port) as server:
        say(f"Watching {folder} at {server.address} (Ctrl-C stops watching)")
        if open_:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            OUT.print("Stopped watching. The run is not affected.")
