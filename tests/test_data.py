"""Datasets: Shakespeare's roles, the synthetic problem, a user's own arrays."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.data.shakespeare import (
    SYMBOLS,
    WINDOW,
    _spoken,
    encode,
    from_texts,
    speeches,
    split_sizes,
)

MARKDOWN = """# A Play

## ACT I

### SCENE I. A street,

lying asleep.

_Enter FIRST and SECOND_

**FIRST**~
_\\[Aside]_~
Who's there?~
Nay, _\\[ ]_ answer me:

_Exit SECOND; a very
long direction_

he is gone.

SONG.

**Second. **~
*[Reads.]*~
'Item,'\\--it says &amp; so on

5\\. Mayor of London, bearing the mace.

_Burthen _\\[dispersedly, within_

**FIRST**~
Farewell — or not.
""".replace("~", "  ")  # a line break in Markdown


def test_only_what_a_role_says_is_its_text():
    assert list(_spoken(MARKDOWN)) == [
        ("FIRST", "Who's there? Nay, answer me:"),
        ("FIRST", "he is gone."),
        ("SECOND", "'Item,'--it says & so on"),
        ("FIRST", "Farewell -- or not."),
    ]


def test_hamlet_says_what_he_says():
    said = speeches()
    hamlet = said["hamlet/HAMLET"]
    assert hamlet.startswith("A little more than kin, and less than kind. Not so, my lord;")
    assert "To be, or not to be: that is the question:" in hamlet
    assert "ACT" not in hamlet
    assert len({user.partition("/")[0] for user in said}) == 38
    assert all(set(text) <= set(SYMBOLS) for text in said.values())


def test_a_sample_is_eighty_characters_and_the_next_one():
    data = fedmom.load_data("shakespeare")
    said = speeches()
    for k in (0, data.clients // 2, data.clients - 1):
        text = said[data.users[k]]
        first, size = int(data.train.start[k]), int(data.train.size[k])
        x, y = data.read(data.arrays, jnp.array([first, first + size - 1]))
        for row, at in ((0, 0), (1, size - 1)):
            window = "".join(SYMBOLS[s] for s in np.asarray(x[row]))
            assert window + SYMBOLS[int(y[row])] == text[at : at + WINDOW + 1]
        last = int(data.test.start[k] + data.test.size[k] - 1)
        _, y = data.read(data.arrays, jnp.array([last]))
        assert SYMBOLS[int(y[0])] == text[-1]


@given(st.integers(-5, 50_000))
def test_the_split_is_leafs(samples):
    train, test = split_sizes(samples)
    if samples >= 3:
        assert train == max(1, int(0.9 * samples))
    assert test == max(0, samples - train - 79) if samples >= 2 else test == 0
    assert 0 <= train + test <= max(samples, 0)


@given(st.lists(st.integers(900, 3000), min_size=1, max_size=5), st.integers(0, 5))
def test_no_test_window_shares_a_character_with_a_training_window(lengths, seed):
    rng = np.random.default_rng(seed)
    texts = {str(i): "".join(rng.choice(list("abc "), n)) for i, n in enumerate(lengths)}
    data = from_texts("t", texts)
    begin = 0
    for k, n in enumerate(lengths):
        trained_on = data.train.start[k] + data.train.size[k] - 1 + WINDOW  # one past its inputs
        assert data.train.start[k] == begin
        assert data.test.start[k] >= trained_on
        assert data.test.start[k] + data.test.size[k] + WINDOW == begin + n
        begin += n


def test_roles_and_samples_choose_a_part():
    everything = fedmom.load_data("shakespeare")
    part = fedmom.load_data("shakespeare:roles=7,samples=1000,seed=3")
    assert part.clients == 7
    assert set(part.users) <= set(everything.users)
    assert (part.train.size == 900).all()
    assert (part.test.size == 1000 - 900 - 79).all()
    assert part.users != fedmom.load_data("shakespeare:roles=7,samples=1000,seed=4").users


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("shakespear", "Did you mean 'shakespeare'"),
        ("shakespeare:roles=100000", "roles=100000 is too many; there are"),
        ("shakespeare:samples=300", "leaves no role a test sample"),
        ("shakespeare:roles=-1", "0 or more"),
        ("shakespeare:role=5", "no option 'role'"),
        ("synthetic:alpha=-1", "0 or more"),
        ("synthetic:clients=0", "1 or more"),
        ("nowhere/data.npz", "There is no nowhere"),
    ],
)
def test_mistakes_are_sentences(spec, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        fedmom.load_data(spec)


def test_a_character_that_leaf_does_not_know_is_refused():
    with pytest.raises(fedmom.FedMomError, match="'é'"):
        encode("café")


def test_synthetic_sizes_and_shapes():
    data = fedmom.load_data("synthetic:clients=50")
    total = data.train.size + data.test.size
    assert data.arrays["x"].shape == (total.sum(), 60)
    assert (total >= 50).all()
    assert total.std() > total.mean() / 2  # lognormal(4, 2): very unequal
    np.testing.assert_array_equal(data.train.size, total * 9 // 10)


def test_synthetic_inputs_have_the_stated_covariance():
    data = fedmom.load_data("synthetic:clients=60,seed=1")
    k = int(np.argmax(data.train.size))
    rows = slice(int(data.train.start[k]), int(data.train.start[k] + data.train.size[k]))
    variance = data.arrays["x"][rows].var(axis=0)
    expected = np.arange(1, 61) ** -1.2
    error = 6 * expected * np.sqrt(2 / data.train.size[k])  # of a variance estimate
    assert (np.abs(variance - expected) < error).all()


def test_beta_spreads_the_clients_inputs():
    def spread(beta):
        data = fedmom.load_data(f"synthetic:beta={beta},clients=40")
        return np.std(
            [data.arrays["x"][s : s + n].mean() for s, n in zip(*data.train, strict=True)]
        )

    # The mean of a client's inputs is B_k + noise of variance 1/60, with B_k ~ N(0, β).
    assert spread(0) < 2 * np.sqrt(1 / 60)
    assert 0.5 * 5 < spread(5) < 1.5 * 5


def test_alpha_moves_all_logits_alike_and_so_no_label():
    data = [fedmom.load_data(f"synthetic:alpha={a}").arrays for a in (0, 5)]
    np.testing.assert_array_equal(data[0]["x"], data[1]["x"])
    np.testing.assert_array_equal(data[0]["y"], data[1]["y"])


def test_from_arrays_keeps_every_row_with_its_client():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (40, 5, 5), np.uint8)
    y, who = rng.integers(0, 4, 40), rng.choice(["ann", "bob", "cy"], 40)
    is_test = rng.random(40) < 0.3
    data = fedmom.from_arrays(x, y, who, is_test=is_test)
    assert list(data.users) == ["ann", "bob", "cy"]
    for split, mark in (("train", False), ("test", True)):
        for k, user in enumerate(data.users):
            start, size = (int(c[k]) for c in data.split(split))
            got, labels = data.read(data.arrays, jnp.arange(start, start + size))
            rows = (who == user) & (is_test == mark)
            np.testing.assert_allclose(got, x[rows] / 255, rtol=1e-6)
            np.testing.assert_array_equal(labels, y[rows])


def valid_npz():
    return {
        "x": np.zeros((4, 3), np.float32),
        "y": np.array([0, 1, 0, 1]),
        "user": np.array([0, 0, 1, 1]),
        "users": np.array(["a", "b"]),
        "is_test": np.array([False, True, False, True]),
    }


def test_an_npz_file_is_a_dataset(tmp_path):
    np.savez(tmp_path / "own.npz", **valid_npz())
    data = fedmom.load_data(str(tmp_path / "own.npz"))
    assert (data.name, data.clients, data.train.size.tolist()) == ("own", 2, [1, 1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"users": None}, "'users' is missing"),
        ({"y": np.array([0, 1, 0])}, "must be equal"),
        ({"y": np.array([0, 1, -1, 0])}, "whole numbers from 0"),
        ({"y": np.array([0.5, 1, 1, 0])}, "whole numbers from 0"),
        ({"user": np.array([0, 0, 2, 1])}, "must be 0..1"),
        ({"is_test": np.array([True, True, False, True])}, "'a' has no training samples"),
        ({"x": np.full((4, 3), np.nan)}, "not finite"),
        ({"x": np.array([None] * 4)}, "not a readable .npz"),
    ],
)
def test_damaged_npz_files_are_refused(tmp_path, change, says):
    content = {**valid_npz(), **change}
    np.savez(tmp_path / "own.npz", **{k: v for k, v in content.items() if v is not None})
    with pytest.raises(fedmom.FedMomError, match=says):
        fedmom.load_data(str(tmp_path / "own.npz"))


def test_a_torn_npz_file_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **valid_npz())
    whole = (tmp_path / "own.npz").read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        (tmp_path / "own.npz").write_bytes(whole[:length])
        with pytest.raises(fedmom.FedMomError, match=r"not a readable \.npz"):
            fedmom.load_data(str(tmp_path / "own.npz"))
