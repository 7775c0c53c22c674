"""The site builds without a warning, its pages have what they should, and its sessions run."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import fedmom
import fedmom.theory
from fedmom.cli.main import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site: a warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_every_page_is_there(site):
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    made = {Path(name) for name in ("index.html", "contributing.html", "changelog.html")}
    made |= {Path("examples") / f"{file.stem}.html" for file in ROOT.glob("examples/*.py")}
    made |= {Path("notebooks") / f"{file.stem}.html" for file in NOTEBOOKS}
    assert len(NOTEBOOKS) == 3
    for page in pages | made:
        assert (site / page).is_file(), page


def test_links_to_files_are_links_to_pages(site):
    index = (site / "index.html").read_text()
    for page in ("architecture.html", "examples/by_hand.html", "contributing.html"):
        assert f'href="{page}' in index
    assert 'src="compare.png"' in index
    assert 'href="examples/own_method.html' in (site / "architecture.html").read_text()


def test_formulas_are_mathml_and_none_is_left(site):
    assert "<math" in (site / "theory.html").read_text()
    for page in site.rglob("*.html"):
        assert 'class="arithmatex"' not in page.read_text(), page


def test_nothing_is_fetched_from_elsewhere(site):
    tags = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:[^\"'> ]+)")
    for page in site.rglob("*.html"):
        assert not tags.findall(page.read_text()), page


def test_every_public_name_is_in_the_reference_once(site):
    pages = sorted((DOCS / "reference").glob("*.md"))
    named = re.findall(r"^::: fedmom\.([\w.]+)$", "\n".join(p.read_text() for p in pages), re.M)
    assert sorted(named) == sorted(
        [*fedmom.__all__, *(f"theory.{name}" for name in fedmom.theory.__all__)]
    )
    text = "".join(page.read_text() for page in site.glob("reference/*.html"))
    for name in named:
        assert f'id="fedmom.{name}"' in text, name


def session(page):
    """Run a page from top to bottom, as a reader would: Python in one process, and commands."""
    namespace = {"__name__": "__main__"}
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", page.read_text(), re.DOTALL):
        if language == "python":
            exec(compile(block, page.name, "exec"), namespace)
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line)
            assert program == "fedmom"
            cli(words, standalone_mode=False)
    return namespace


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_run(page, tmp_path, monkeypatch):
    if "import torch\n" in page.read_text():
        pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    session(page)


def test_the_tutorials_scaffold_is_that_of_the_example():
    shown = (DOCS / "tutorials" / "own_method.md").read_text()
    (function,) = re.findall(r"```python\n(def scaffold.*?)```", shown, re.DOTALL)
    assert function in (ROOT / "examples" / "own_method.py").read_text()


def test_the_tutorials_noise_is_as_large_as_it_says(tmp_path, monkeypatch):
    """Its standard deviation is z C / M, and an update is never longer than C."""
    import jax
    import jax.numpy as jnp

    shown = (DOCS / "tutorials" / "own_method.md").read_text()
    (code,) = re.findall(r"```python\n(import jax\n.*?def clip_and_noise.*?)```", shown, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"fedmom": fedmom, "optax": __import__("optax")}
    exec(code, names)
    stage = names["clip_and_noise"](norm=2.0, noise=0.5)
    here = fedmom.Round(0, jax.random.key(0), replies=jnp.asarray(4), weight=4.0, scale=0.25)
    noisy = stage.after({"w": jnp.zeros(40_000)}, (), here)[0]["w"]
    assert float(noisy.std()) == pytest.approx(0.5 * 2.0 / 4, rel=0.02)
    assert float(abs(noisy.mean())) < 0.01
    for length, expected in ((0.0, 0.0), (1.0, 1.0), (5.0, 2.0)):
        update, *_ = stage.encode({"w": jnp.array([length, 0.0])}, (), (), None)
        assert float(jnp.linalg.norm(update["w"])) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert any(shown)


class Proxy:
    """A proxy for everything: whoever wants to reach another machine connects to it."""

    def __init__(self):
        self.requests = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._refuse, daemon=True).start()

    def _refuse(self):
        while True:
            try:
                with self._server.accept()[0] as connection:
                    connection.settimeout(5)
                    self.requests.append(connection.recv(200))
            except OSError:
                return

    def close(self):
        self._server.close()


@pytest.fixture
def proxy():
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.mark.slow
def test_recipes_for_callbacks_run_offline(tmp_path, proxy):
    """With the real packages, and nobody tries to reach another machine."""
    program = (
        "import json, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from tests.test_site import session\n"
        "names = session(Path(sys.argv[2]))\n"
        "import fedmom\n"
        "stopped = fedmom.load('runs/early')\n"
        "print('END', json.dumps([stopped.status, stopped.result.why, names['done']]))\n"
    )
    reached = {f"{kind}_proxy": proxy.address for kind in ("http", "https", "all")}
    reached |= {name.upper(): value for name, value in reached.items()}
    env = {k: v for k, v in os.environ.items() if k.lower() not in ("no_proxy", "pytest_version")}
    env |= reached | {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    env.pop("PYTEST_CURRENT_TEST", None)  # some packages are quieter under pytest
    command = [sys.executable, "-c", program, str(ROOT), str(DOCS / "callbacks.md")]
    printed = run(command, cwd=tmp_path, env=env)
    status, why, done = json.loads(printed.rpartition("END")[2])
    assert status == "stopped"
    assert "has not fallen for 3 evaluations" in why
    assert done == {"fedavg": 5, "fedmom": 5}
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert (tmp_path / "mlflow.db").stat().st_size > 0
    assert list(tmp_path.glob("runs/board/tensorboard/events*"))
    assert not proxy.requests
