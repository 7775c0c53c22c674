"""Shakespeare's roles: what a role says, LEAF's samples of it, and LEAF's split."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data import load
from fedmom.data.batches import reader
from fedmom.data.sources.shakespeare import (
    SYMBOLS,
    WINDOW,
    _spoken,
    encode,
    from_roles,
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
    data = load("shakespeare")
    said, read = speeches(), reader(data.features)
    for k in (0, data.clients // 2, data.clients - 1):
        text = said[data.users[k]]
        first, size = int(data.train.start[k]), int(data.train.size[k])
        x, y = read(data.arrays, jnp.array([first, first + size - 1]))
        for row, at in ((0, 0), (1, size - 1)):
            window = "".join(SYMBOLS[s] for s in np.asarray(x[row]))
            assert window + SYMBOLS[int(y[row])] == text[at : at + WINDOW + 1]
        last = int(data.test.start[k] + data.test.size[k] - 1)
        _, y = read(data.arrays, jnp.array([last]))
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
    data = from_roles("t", texts)
    begin = 0
    for k, n in enumerate(lengths):
        trained_on = data.train.start[k] + data.train.size[k] - 1 + WINDOW  # one past its inputs
        assert data.train.start[k] == begin
        assert data.test.start[k] >= trained_on
        assert data.test.start[k] + data.test.size[k] + WINDOW == begin + n
        begin += n


def test_roles_and_samples_choose_a_part():
    everything = load("shakespeare")
    part = load("shakespeare:roles=7,samples=1000,seed=3")
    assert part.clients == 7
    assert set(part.users) <= set(everything.users)
    assert (part.train.size == 900).all()
    assert (part.test.size == 1000 - 900 - 79).all()
    assert part.users != load("shakespeare:roles=7,samples=1000,seed=4").users


def test_a_character_that_leaf_does_not_know_is_refused():
    with pytest.raises(FedMomError, match="'é'"):
        encode("café")
