import itertools

import jax
import matplotlib as mpl
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data import load
from fedmom.data.batches import place, reader
from fedmom.data.federated import Features
from fedmom.data.sources.glyphs import CHARACTERS, EXPECTED, FONTS, _type, glyphs
from fedmom.data.store.reader import check_store, read_manifest
from fedmom.models import build


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMOM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def data(cache):  # noqa: ARG001 (the cache must stand first)
    return glyphs(writers=40, samples=200)


def rows(data, k, *splits):
    """The row numbers of a client in the splits."""
    chosen = [data.split(name) for name in splits]
    return np.concatenate([s.start[k] + np.arange(s.size[k]) for s in chosen])


def shares(labels):
    return np.bincount(labels, minlength=len(CHARACTERS)) / len(labels)


def test_images_and_labels_have_the_form_of_femnist(data):
    x, y = data.arrays["x"], data.arrays["y"]
    assert data.features == Features("image", (28, 28), 62)
    assert (x.dtype, x.shape[1:], y.dtype, y.shape) == (np.uint8, (28, 28), np.uint8, (len(x),))
    assert CHARACTERS[0:10].isdigit()
    assert CHARACTERS[10:36].isupper()
    assert CHARACTERS[36:62].islower()
    assert y.max() < 62


def test_everything_is_called_synthetic(data, cache):
    assert data.name == "glyphs (synthetic)"
    assert all(user.startswith("synthetic-") for user in data.users)
    assert data.users[0] == "synthetic-0001"
    assert len(set(data.users)) == 40
    assert "ynthetic" in glyphs.__doc__.splitlines()[0]
    for folder in cache.glob("glyphs-*"):
        assert "synthetic" in read_manifest(folder).source["kind"]


def test_every_row_belongs_to_one_writer_and_a_tenth_is_for_testing(data):
    n = data.train.size + data.test.size
    order = np.concatenate([rows(data, k, "train", "test") for k in range(data.clients)])
    np.testing.assert_array_equal(order, np.arange(len(data.arrays["y"])))
    np.testing.assert_array_equal(data.train.size, n * 9 // 10)


def test_the_smallest_writers_have_a_sample_in_each_split():
    tiny = glyphs(writers=30, samples=2)
    assert tiny.train.size.min() >= 1
    assert tiny.test.size.min() >= 1


def test_sizes_are_as_uneven_as_in_femnist():
    many = glyphs(writers=400, samples=20)
    sizes = (many.train.size + many.test.size) / 20
    assert abs(sizes.mean() - 1) < 4 * sizes.std() / np.sqrt(len(sizes))
    assert sizes.std() == pytest.approx(87.80 / 224.50, rel=0.15)
    assert sizes.min() >= 0.4
    assert sizes.max() <= 2


def test_paper_is_white_ink_is_black_and_lies_inside_the_image(data):
    x = data.arrays["x"]
    np.testing.assert_array_equal(np.median(x, axis=(1, 2)), 255)
    assert np.all(x.min(axis=(1, 2)) < 128)
    ink = 255.0 - x
    assert ink[:, 1:-1, 1:-1].sum() > 0.99 * ink.sum()


def test_images_are_upright(data):
    """An L has its weight below and to the left, a 7 and a P above: turning would swap them."""
    ink = 255.0 - data.arrays["x"]
    middle = np.arange(28) - 13.5
    down = (ink.sum(axis=2) @ middle) / ink.sum(axis=(1, 2))
    right = (ink.sum(axis=1) @ middle) / ink.sum(axis=(1, 2))
    mean = {
        c: (down[data.arrays["y"] == i].mean(), right[data.arrays["y"] == i].mean())
        for i, c in enumerate(CHARACTERS)
    }
    assert mean["L"][0] > max(mean["P"][0], mean["T"][0], mean["7"][0])
    assert mean["d"][1] > mean["b"][1]
    assert mean["p"][0] > mean["b"][0]


def test_small_letters_are_smaller_than_their_capitals(data):
    height = (data.arrays["x"] < 128).any(axis=2).sum(axis=1)
    mean = [height[data.arrays["y"] == i].mean() for i in range(62)]
    for letter in "cosvwxz":
        assert mean[CHARACTERS.index(letter)] < 0.85 * mean[CHARACTERS.index(letter.upper())]


@pytest.mark.parametrize("font", FONTS)
def test_a_font_has_a_form_of_its_own_for_every_character_and_it_fits_the_canvas(font):
    forms = _type(font, FONTS[font])
    assert np.all(forms.max(axis=(1, 2)) > 200)
    assert len(np.unique(forms.reshape(62, -1), axis=0)) == 62  # no box for a missing character
    inner = np.zeros_like(forms)
    inner[:, 1:-1, 1:-1] = forms[:, 1:-1, 1:-1]
    np.testing.assert_array_equal(forms, inner)


@settings(max_examples=10, deadline=None)
@given(
    few=st.integers(1, 6),
    more=st.integers(0, 6),
    samples=st.integers(2, 30),
    seed=st.integers(0, 2**70),
)
def test_fewer_writers_are_the_first_of_more(few, more, samples, seed):
    small = glyphs(writers=few, samples=samples, seed=seed)
    large = glyphs(writers=few + more, samples=samples, seed=seed)
    assert list(small.users) == list(large.users)[:few]
    for split in ("train", "test"):
        for a, b in zip(small.split(split), large.split(split), strict=True):
            np.testing.assert_array_equal(a, b[:few])
    for name, array in small.arrays.items():
        np.testing.assert_array_equal(array, large.arrays[name][: len(array)])


def test_the_same_seed_draws_the_same_bytes_again(tmp_path, monkeypatch):
    first = glyphs(writers=5, samples=30, seed=7)
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path))
    again = glyphs(writers=5, samples=30, seed=7)
    assert len(list(tmp_path.glob("glyphs-*"))) == 1
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


def test_other_seeds_and_numbers_are_other_writers():
    # 2**32 is where seeds that are merely strung together with a number begin to collide.
    firsts = [glyphs(writers=3, samples=30, seed=s) for s in (0, 1, 2, 2**32)]
    images = [d.arrays["x"][s] for d in firsts for s in d.train.start]
    assert len({p.tobytes() for p in images}) == len(images)


def test_a_second_call_opens_what_the_first_one_packed(data, cache):
    def packed():
        return {f: f.stat().st_mtime_ns for f in cache.rglob("*")}

    before = packed()
    again = glyphs(writers=40, samples=200)
    assert packed() == before
    assert list(again.users) == list(data.users)
    for folder in cache.glob("glyphs-*"):
        assert check_store(folder) == []


def test_digits_capitals_and_small_letters_have_femnists_shares():
    many = glyphs(writers=400, samples=20)
    mixes = np.array([shares(many.arrays["y"][rows(many, k, "train", "test")]) for k in range(400)])
    for group in (slice(0, 10), slice(10, 36), slice(36, 62)):
        share = mixes[:, group].sum(axis=1)
        error = share.std() / np.sqrt(len(share))
        assert abs(share.mean() - EXPECTED[group].sum()) < 4 * error
    assert EXPECTED[:10].sum() == pytest.approx(0.54)  # 58,412 of 108,173 in LEAF's files
    assert EXPECTED.sum() == pytest.approx(1)


def test_label_mixes_differ_more_between_writers_than_between_halves_of_one():
    data = glyphs(writers=10, samples=1000)
    mixes = []
    for k in range(data.clients):
        labels = data.arrays["y"][rows(data, k, "train", "test")]
        mixes.append((shares(labels[::2]), shares(labels[1::2])))
    within = [abs(a - b).sum() / 2 for a, b in mixes]
    between = [
        abs(a - b).sum() / 2
        for (a, _), (b, _) in itertools.combinations(mixes, 2)  # the same sample sizes
    ]
    assert np.mean(between) > 2 * np.mean(within)
    assert min(between) > max(within)


def test_a_character_looks_like_its_writers_others_more_than_like_other_writers(data):
    """Test images go to the writer whose mean training image of their class is nearest."""
    x, y = data.arrays["x"].astype(float), data.arrays["y"]
    hits, guesses = 0, 0.0
    for label in range(10):  # digits: every writer has some
        means, tests = {}, []
        for k in range(data.clients):
            train, test = (rows(data, k, s) for s in ("train", "test"))
            if np.sum(y[train] == label) > 2:
                means[k] = x[train[y[train] == label]].mean(axis=0)
                tests += [(k, image) for image in x[test[y[test] == label]]]
        for writer, image in tests:
            nearest = min(means, key=lambda k: ((means[k] - image) ** 2).sum())
            hits += nearest == writer
            guesses += 1 / len(means)
    assert hits > 10 * guesses


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"writers": 0}, "writers=0 is not between 1 and"),
        ({"writers": -3}, "writers=-3 is not between 1 and"),
        ({"samples": 1}, "samples=1 is not between 2 and"),
        ({"seed": -1}, "seed=-1 is not between 0 and"),
        ({"writers": 2**31}, "writers=2147483648 is not between 1 and 1,000,000"),
    ],
)
def test_options_out_of_range_are_refused(options, complaint):
    with pytest.raises(FedMomError, match=f"glyphs: {complaint}"):
        load("glyphs:" + ",".join(f"{name}={value}" for name, value in options.items()))


def test_a_missing_font_is_named_and_nothing_stays_behind(tmp_path, monkeypatch):
    _type.cache_clear()
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mpl, "get_data_path", lambda: str(tmp_path / "nowhere"))
    with pytest.raises(FedMomError, match=r"nowhere.*\.ttf.*matplotlib"):
        glyphs(writers=1, samples=2)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_lenet_reads_four_of_five_characters():
    data = glyphs()
    model = build("lenet5", data.features)
    read = reader(data.features)
    params, optimizer = model.init(jax.random.key(0)), optax.adam(2e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, arrays, positions):
        x, y = read(arrays, positions)
        gradient = jax.grad(lambda p: model.loss(model.apply(p, x, None), y).mean())(params)
        update, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, update), state

    arrays = place(data.arrays)
    train = np.concatenate([rows(data, k, "train") for k in range(data.clients)])
    rng = np.random.default_rng(0)
    for _ in range(1500):
        params, state = step(params, state, arrays, rng.choice(train, 64))
    test = np.concatenate([rows(data, k, "test") for k in range(data.clients)])
    x, y = read(arrays, test)
    accuracy = float((model.apply(params, x, None).argmax(1) == y).mean())
    print(f"LeNet-5 on glyphs (synthetic): test accuracy {accuracy:.4f}")
    assert accuracy > 0.80
