"""`fedmom data` as a user meets it: list, stats, show, prepare, check."""

import json

import matplotlib.figure
import numpy as np
import pytest
from PIL import Image

from fedmom import data as datasets
from fedmom.cli.output import OUT
from fedmom.data.partition import PARTITIONS
from fedmom.data.summary import counts, statistics
from tests.cli.command import invoke, refused, words
from tests.data.sources import test_femnist


def test_prepare_writes_a_store_that_runs(tmp_path):
    out = invoke("data", "prepare", "synthetic", "--sf", "0.5", "-k", "60", "-t", "sample",
                 "--tf", "0.8", "--out", "half")  # fmt: skip
    assert "Use it as --data half" in out
    manifest = json.loads((tmp_path / "half/manifest.json").read_text())
    assert manifest["source"]["flags"]["sf"] == 0.5
    data = datasets.load(str(tmp_path / "half"))
    row = statistics(data)
    assert f"{row.samples:,} samples of {row.clients:,} clients" in out
    assert counts(data).min() >= 60
    assert data.train.size.sum() / row.samples == pytest.approx(0.8, abs=0.02)
    sound = f"is sound: {row.samples:,} samples of {row.clients:,} clients."
    assert sound in invoke("data", "check", "half")
    line = next(x for x in invoke("data", "stats", "half").splitlines() if "synthetic" in x)
    assert line.split()[1:3] == [f"{row.samples:,}", f"{row.clients:,}"]
    invoke("run", "--data", "half", "--rounds", "2", "--lr", "0.01", "--out", "r")
    assert (tmp_path / "r/config.toml").read_text().count(str(tmp_path / "half")) == 1


def test_check_finds_a_changed_store(tmp_path):
    invoke("data", "prepare", "synthetic", "--out", "s")
    content = bytearray((tmp_path / "s/y.bin").read_bytes())
    content[0] = 99
    (tmp_path / "s/y.bin").write_bytes(content)
    text = refused("data", "check", "s")
    assert text.startswith("s: ")
    assert "y.bin has changed since it was packed" in text


def test_prepare_does_not_write_over_what_is_no_store(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("work of years")
    text = refused("data", "prepare", "synthetic", "--out", "mine")
    assert text == "mine exists and is not a FedMom store. Choose another --out."
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, in their order, by the names of the files that show writes."""
    found = {}
    savefig = matplotlib.figure.Figure.savefig

    def kept(self, *args, **options):
        found[("population.png", "samples.png")[len(found)]] = self
        savefig(self, *args, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", kept)
    return found


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("glyphs:writers=3,samples=20", ["population.png", "samples.png"]),
        ("shakespeare:roles=4", ["population.png", "samples.png"]),
        ("synthetic:clients=5", ["population.png"]),
    ],
)
def test_show_draws_the_population_and_its_samples(drawn, source, names):
    lines = invoke("data", "show", source, "--out", "p").splitlines()
    assert lines == [f"Figure: p/{name}" for name in names]
    data = datasets.load(source)
    row = statistics(data)
    for name in names:
        image = np.asarray(Image.open(f"p/{name}").convert("L"))
        assert min(image.shape) > 300
        assert image.min() < 100 < 250 < image.max()  # ink on paper
    title = f"{data.name}: {row.samples:,} samples of {row.clients:,} clients"
    assert title in texts(drawn["population.png"])
    assert f"mean {row.mean:,.1f}" in texts(drawn["population.png"])
    sizes, _, mixes = drawn["population.png"].axes
    (area,) = sizes.collections
    assert area.get_paths()[0].vertices[:, 1].max() == counts(data).max()
    assert mixes.images[0].get_array().shape[0] == data.clients
    if "samples.png" in names:
        shown = texts(drawn["samples.png"])
        assert set(data.users) <= set(shown)
        if data.features.kind == "image":
            pictures = [axis.images[0] for axis in drawn["samples.png"].axes if axis.images]
            assert len(pictures) == np.minimum(data.train.size, 14).sum()
            assert pictures[0].get_array().shape == data.features.shape
        else:
            windows = [text for text in shown if " > " in text and not text.endswith("next")]
            assert len(windows) == 2 * data.clients
            assert all(len(window.partition(" > ")[0]) >= 80 for window in windows)


def test_stats_says_whose_row_is_the_papers_and_which_labels_nobody_learns(tmp_path):
    y = np.array([1, 2, 3, 1])
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 28, 28)), y=y, user=y * 0, is_test=y == 3)
    own = invoke("data", "stats", str(tmp_path / "own.npz"))
    assert own.splitlines()[-2:] == ["Labels: 1, 2, 3", "Labels that only test samples have: 3"]
    assert "(paper)" not in own
    assert "FEMNIST (paper)" in invoke("data", "stats", "glyphs:writers=2")


def test_show_finds_a_folder_of_its_own():
    assert invoke("data", "show", "synthetic:clients=3") == (
        "Figure: runs/data-synthetic-clients-3/population.png\n"
    )


def test_stats_is_table_two():
    text = invoke("data", "stats", "shakespeare:roles=5,samples=1000")
    header, ours, papers, left_out = text.splitlines()
    assert header.split() == ["dataset", "samples", "clients", "mean", "std", "train", "test"]
    data = datasets.load("shakespeare:roles=5,samples=1000")
    train, test = int(data.train.size.sum()), int(data.test.size.sum())
    assert ours.split()[-6:] == ["5,000", "5", "1000.00", "0.00", f"{train:,}", f"{test:,}"]
    assert papers.split()[-4:] == ["517,106", "125", "4136.85", "7226.20"]
    assert left_out == "395 windows between train and test are left out, as in LEAF."
    assert train + test + 395 == 5000


def test_the_list_has_names_formats_and_partitions(monkeypatch):
    monkeypatch.setattr(OUT, "_width", 300)
    text = words(invoke("data", "list"))
    for kind, names in (("name", datasets.DATASETS), ("partition", PARTITIONS)):
        for spec, about in names.described():
            assert f"{kind} {spec} {about}" in text
    for about in datasets.FORMATS:
        assert f"path PATH {about}" in text


def test_femnist_is_prepared_from_archives_at_hand(tmp_path):
    (tmp_path / "zips").mkdir()
    archives = test_femnist.build(tmp_path / "zips")
    text = invoke("data", "prepare", "femnist", "--archives", str(archives.by_class.parent))
    assert "Use it as --data femnist" in text
    assert "femnist is sound" in invoke("data", "check", "femnist").lower()
    data = datasets.load("femnist")
    assert f"prepared femnist {data.name}, {data.clients:,} clients" in words(
        invoke("data", "list")
    )


def visits(tmp_path):
    """A table of a user's own, without client ids that need be used."""
    rng = np.random.default_rng(0)
    rows = [
        f"{k % 5},{rng.normal():.3f},{rng.normal():.3f},{'yes' if k % 3 else 'no'}"
        for k in range(60)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["user,a,b,ill", *rows]) + "\n")


def test_a_table_is_run_resumed_and_its_change_noticed(tmp_path):
    pytest.importorskip("pyarrow")
    visits(tmp_path)
    spec = "visits.csv:client=user,label=ill,test_fraction=0.25"
    out = invoke("data", "stats", spec)
    assert out.splitlines()[1].split()[1:3] == ["60", "5"]
    assert out.splitlines()[-1] == "Labels: no, yes"
    invoke("run", "--data", spec, "--rounds", "2", "--lr", "0.01", "--out", "r")
    assert f'data = "{tmp_path}/{spec}"' in (tmp_path / "r/config.toml").read_text()
    invoke("resume", "r")
    with (tmp_path / "visits.csv").open("a") as file:
        file.write("9,0.5,0.5,no\n")
    assert "clients of the data was 5 and is 6" in refused("resume", "r")


def test_prepare_deals_a_table_that_has_no_clients(tmp_path):
    pytest.importorskip("pyarrow")
    visits(tmp_path)
    source = "visits.csv:label=ill,features=a+b"
    assert "no client IDs given" in refused("data", "prepare", source, "--out", "s")
    invoke("data", "prepare", source, "--partition", "iid:clients=4", "-t", "sample", "--out", "s")
    data = datasets.load("s")
    assert (data.clients, data.class_names) == (4, ("no", "yes"))
    assert (data.train.size > 0).all()
    assert (data.test.size > 0).all()
    assert "4 clients" in invoke("data", "check", "s")


@pytest.mark.parametrize("labels", ["a", "a+b", "ill"])
def test_show_draws_values_and_named_classes(tmp_path, drawn, labels):
    pytest.importorskip("pyarrow")
    visits(tmp_path)
    source = f"visits.csv:label={labels},client=user"
    if labels != "ill":
        source = f"visits.csv:label={labels},features=user,partition=iid:clients=5"
    invoke("data", "show", source, "--out", "p")
    shown = texts(drawn["population.png"])
    assert ("yes" in shown) == (labels == "ill")
    assert ("value to predict" in shown) == (labels != "ill")
