"""The random streams of one seed, whose keys never change; and the bits of jax.random."""

from itertools import combinations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.core import prng
from fedmom.core.errors import FedMomError

numbers = st.integers(0, 2**32 - 1)
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


@given(seed=numbers, stream=numbers)
def test_the_key_of_a_stream_is_what_jax_folds(seed, stream):
    expected = jax.random.fold_in(jax.random.key(seed), np.uint32(stream))
    key = prng.stream_key(seed, stream)
    assert key.dtype == expected.dtype
    assert (jax.random.key_data(key) == jax.random.key_data(expected)).all()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_without_a_key_is_refused(seed):
    with pytest.raises(FedMomError, match=f"seed {seed} is not between 0 and 4294967295"):
        prng.stream_key(seed, 0)


@given(seed=numbers, number=numbers)
def test_keys_are_folded_as_jax_does(seed, number):
    key = jax.random.key(seed)
    ours = prng.fold_in(key, np.uint32(number))
    theirs = jax.random.fold_in(key, np.uint32(number))
    assert (jax.random.key_data(ours) == jax.random.key_data(theirs)).all()


@given(seed=numbers, count=st.sampled_from([1, 2, 7, 10, 64]))
def test_bits_are_those_of_jax(seed, count):
    key = jax.random.key(seed)
    assert (prng.bits(key, count) == jax.random.bits(key, (count,))).all()


@given(seed=numbers, number=numbers)
def test_bits_of_a_folded_key_are_those_of_jax(seed, number):
    key = jax.random.key(seed)
    expected = jax.random.bits(jax.random.fold_in(key, np.uint32(number)), (10,))
    assert (prng.folded_bits(key, np.uint32(number), 10) == expected).all()


def test_keys_do_not_depend_on_the_default_of_the_process():
    expected = [jax.random.key_data(make(3)) for make in (prng.clients_key, prng.init_key)]
    with jax.default_prng_impl("rbg"):
        found = [jax.random.key_data(make(3)) for make in (prng.clients_key, prng.init_key)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(), (7,), (5, 5, 3, 2), (prng.CHUNK + 3,), (0, 4)])
def test_uniform_numbers_are_those_of_jax(shape):
    key = prng.stream_key(5, 0)
    drawn = prng.centred_uniform(key, shape)
    np.testing.assert_array_equal(drawn, jax.random.uniform(key, shape, minval=-1))
    assert drawn.dtype == np.float32
    inside = jax.jit(lambda k: prng.centred_uniform(k, shape))(key)
    np.testing.assert_array_equal(drawn, inside)


def test_split_keys_are_those_of_jax():
    key = prng.stream_key(5, 0)
    for ours, theirs in zip(prng.split(key, 4), jax.random.split(key, 4), strict=True):
        assert (jax.random.key_data(ours) == jax.random.key_data(theirs)).all()
    inside = jax.jit(lambda k: jax.random.key_data(prng.split(k, 2)[1]))(key)
    assert (inside == jax.random.key_data(jax.random.split(key, 2)[1])).all()
