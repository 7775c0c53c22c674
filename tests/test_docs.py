"""Every command and snippet of the documentation runs, and what it names is there."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import click
import numpy as np
import pandas
import pytest
from PIL import Image

from fedmom.cli.main import cli
from fedmom.experiments import run_lists, settings

ROOT = Path(__file__).parents[1]
CHANGES = ROOT / "CHANGELOG.md"  # names what was before, too
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
EXTENDING = ROOT / "docs" / "extending.md"  # its package of two files has its own test
# Pages whose blocks go on from one to the next; tests/test_site.py runs them.
SESSIONS = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "docs" / "callbacks.md"]


def code(page, language):
    """All code blocks of a language on a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def blocks(language):
    """All code blocks of a language, with the page each is on."""
    pages = [page for page in PAGES if page not in (EXTENDING, *SESSIONS)]
    found = [(page.name, text) for page in pages for text in code(page, language)]
    return [
        pytest.param(
            text, id=f"{name}-{i}", marks=[pytest.mark.thorough] * ("import torch\n" in text)
        )
        for i, (name, text) in enumerate(found)
    ]


def commands():
    """The pages' blocks of fedmom commands; setting up is what .ci/run does."""
    for block in blocks("sh"):
        if block.values[0].startswith("fedmom"):
            marks = () if block.id.startswith("README") else pytest.mark.thorough
            yield pytest.param(*block.values, id=block.id, marks=marks)


def prose(page):
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """The data that the pages speak of, in small, and one cache for all of it."""
    folder = tmp_path_factory.mktemp("datasets")
    rng = np.random.default_rng(0)
    for part, samples in (("train", 12), ("test", 3)):
        users = {
            f"f000{k}_0{k}": {
                "x": [
                    [round(int(v) / 255, 17) for v in rng.integers(0, 256, 784)]
                    for _ in range(samples)
                ],
                "y": rng.integers(0, 62, samples).tolist(),
            }
            for k in range(6)
        }
        shard = {"users": list(users), "num_samples": [samples] * 6, "user_data": users}
        file = folder / "leaf" / "femnist" / part / f"all_data_0_{part}.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(shard))
    (folder / "mnist").mkdir()
    for name, rows in (("train", 400), ("t10k", 100)):
        for kind, shape in (("images-idx3", (rows, 28, 28)), ("labels-idx1", (rows,))):
            values = rng.integers(0, 256 if len(shape) > 1 else 10, shape, np.uint8)
            head = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
            (folder / "mnist" / f"{name}-{kind}-ubyte").write_bytes(head + values.tobytes())
    own_data(folder, rng)
    return folder


def own_data(folder, rng):
    """A table, pictures and texts, as a user may have them."""
    table = pandas.DataFrame(
        {
            "user": [f"user {k % 6}" for k in range(120)],
            "age": rng.integers(18, 90, 120),
            "weight": rng.normal(70, 10, 120),
            "ill": rng.choice(["no", "yes"], 120),
            "held_out": np.arange(120) >= 100,
        }
    )
    table.to_csv(folder / "visits.csv", index=False)
    table.to_parquet(folder / "visits.parquet")
    for client in ("ann", "bob"):
        for label in ("cat", "dog"):
            (folder / "photos" / client / label).mkdir(parents=True)
            for k in range(5):
                pixels = rng.integers(0, 256, (20, 18, 3), np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / client / label / f"{k}.png")
    (folder / "letters").mkdir()
    for client in ("ann", "bob"):
        (folder / "letters" / f"{client}.txt").write_text(f"Dear reader, {client} is well. " * 9)


@pytest.fixture
def workplace(datasets, tmp_path, monkeypatch):
    """A folder for one page's commands, where that data is at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMOM_CACHE", str(datasets / "cache"))
    for name in ("leaf", "mnist", "visits.csv", "visits.parquet", "photos", "letters"):
        (tmp_path / name).symlink_to(datasets / name)
    return tmp_path


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("block", list(commands()))
def test_commands_run(block):
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "fedmom"
        cli(words, standalone_mode=False)  # a mistake is raised


def find(words):
    """The command that words begin with, and the words after it."""
    command = cli
    while isinstance(command, click.Group):
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    return command, words


def long_commands():
    """Commands that take too long to be run here; they are written with the path of fedmom."""
    return [
        line
        for block in blocks("sh")
        for line in block.values[0].splitlines()
        if line.startswith(".venv/bin/fedmom ")
    ]


@pytest.mark.parametrize("line", long_commands())
def test_long_commands_are_understood(line):
    command, words = find(shlex.split(line)[1:])
    command.make_context(command.name, words)


def test_benchmarks_that_are_named_are_there():
    named = re.findall(r"^python (benchmarks/\S+)", "\n".join(p.read_text() for p in PAGES), re.M)
    assert named
    for script in named:
        assert (ROOT / script).is_file()


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("block", blocks("python"))
def test_snippets_run(block, capsys):
    if "import tokenizers" in block:
        pytest.importorskip("tokenizers", reason="needs the package tokenizers, of fedmom[dev]")
    if "import torch\n" in block:
        pytest.importorskip("torch", reason="torch is not installed")
    exec(compile(block, "snippet", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("block", blocks("toml"))
def test_settings_are_settings(block):
    values = tomllib.loads(block)
    grid = values.pop("grid", {})
    settings.parse(values)
    assert run_lists.of_sweep(values, grid)


@pytest.mark.slow  # tests/core/test_registry.py has another, every time
def test_a_package_of_your_own(tmp_path):
    """The package of docs/extending.md as pip would install it, on the command line and resumed."""
    (project,) = map(tomllib.loads, code(EXTENDING, "toml"))
    (module,) = code(EXTENDING, "python")
    (line,) = code(EXTENDING, "sh")
    (tmp_path / "my_methods.py").write_text(module)
    installed = tmp_path / "my_methods-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: my-methods\nVersion: 0.1\n")
    groups = project["project"]["entry-points"]
    (installed / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
            for group, rows in groups.items()
        )
    )
    words = shlex.split(line)[1:]
    calls = [words, ["resume", words[-1]], ["list"]]
    program = (
        "from fedmom.cli.main import cli\n"
        f"for words in {calls!r}:\n    cli(words, standalone_mode=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "fedlion:b2=0.99" in done.stdout
    assert "signs:scale=0.01" in done.stdout


def test_links_lead_somewhere():
    for page in [*PAGES, CHANGES]:
        for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if "://" not in target:
                there = page.parent / target if target else page
                assert there.exists(), f"{page.name}: {target}"
                if heading:
                    assert heading in headings(there), f"{page.name}: {target}#{heading}"


def headings(page):
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_files_that_are_named_are_there():
    for page in [*PAGES, CHANGES]:
        for path in re.findall(r"`((?:src|tests|examples|benchmarks|docs)/[^`\s]+)`", prose(page)):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = project["tool"]["importlinter"]["contracts"]
    layers = "|".join(name.removeprefix("fedmom.") for name in contract["layers"])
    below = re.findall(
        rf"`((?:{layers})/[\w/.]*)`", ARCHITECTURE.read_text() + EXTENDING.read_text()
    )
    assert len(below) > 20
    for path in below:
        assert (ROOT / "src" / "fedmom" / path).exists(), path


def test_names_that_are_named_are_there():
    for page in PAGES:
        for name in re.findall(r"`fedmom(\.[\w.]+\w)", page.read_text()):
            group = page == EXTENDING and name.count(".") == 1 and name.endswith("s")
            if not group:  # those of entry points are no modules
                resolve_name(f"fedmom{name}")


def test_options_that_are_named_are_there():
    def known(command):
        found = {flag for param in command.params for flag in param.opts}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found |= known(command.get_command(context, name))
        return found

    ours = known(cli) | {"--help", "--peers", "--nets"}  # the last two: of benchmarks
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][\w-]*)", prose(page)):
            assert option in ours, f"{page.name}: {option}"


def test_the_picture_has_the_layers():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [name.removeprefix("fedmom.") for name in contract["contracts"][0]["layers"]]
    picture = (ROOT / "docs" / "architecture.svg").read_text()
    assert re.findall(r'class="name"[^>]*>(\w+)<', picture) == layers
    assert set(layers) == {p.parent.name for p in (ROOT / "src" / "fedmom").glob("*/__init__.py")}


def test_ci_runs_the_readmes_test_command():
    readme = (ROOT / "README.md").read_text()
    assert len(re.findall(r"^python3 -m venv .*pytest.*$", readme, re.MULTILINE)) == 1
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_the_main_job_shows_a_clear_difference(workplace):
    done = subprocess.run(
        [sys.executable, "-m", "fedmom", "compare", "--out", "main"],
        capture_output=True,
        text=True,
        check=False,
        cwd=workplace,
    )
    assert done.returncode == 0, done.stderr
    assert "Figure: main/compare.png" in done.stdout
    final = {}
    for algorithm in ("fedsgd", "fedavg", "fedmom"):
        rows = (workplace / "main" / algorithm / "evals.jsonl").read_text().splitlines()
        final[algorithm] = json.loads(rows[-1])["accuracy"]
    assert final["fedsgd"] + 0.03 < final["fedavg"]
    assert final["fedavg"] + 0.01 < final["fedmom"]
