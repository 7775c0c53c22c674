"""The random streams of one seed: each its own, and those that were there keep their keys."""

from itertools import combinations

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.core import prng

STREAMS = (prng.init_key, prng.clients_key, prng.hessian_key, prng.stages_key)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_streams_of_one_seed_are_pairwise_different(seed):
    """Earlier, the Hessian's first vector was drawn with the key of the model's parameters."""
    keys = [tuple(jax.random.key_data(stream(seed)).tolist()) for stream in STREAMS]
    assert all(one != other for one, other in combinations(keys, 2))


@pytest.mark.parametrize(("stream", "number"), list(zip(STREAMS, range(4), strict=True)))
def test_a_stream_is_a_fold_of_the_seed(stream, number):
    """Runs repeat across versions as long as these numbers stay."""
    expected = jax.random.fold_in(jax.random.key(11), number)
    assert (jax.random.key_data(stream(11)) == jax.random.key_data(expected)).all()


def test_streams_of_other_seeds_are_others():
    keys = [tuple(jax.random.key_data(s(seed)).tolist()) for s in STREAMS for seed in range(50)]
    assert len(set(keys)) == len(keys)
