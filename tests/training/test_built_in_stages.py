"""The stages that come along: what they promise of every update and of their means."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms.base import Round
from tests.conftest import population
from tests.training.scripted import UPDATES, Scripted, fedavg, no_net, rounds

BITS = (2, 3, 4, 8, 9, 12, 16)
DRAWS = 2000


def there_and_back(bits, update, keys):
    """What arrives of an update, for each of several keys."""
    stage = fedmom.quantize(bits=bits)

    def once(key):
        encoded, state, metrics = stage.encode(update, (), (), key)
        assert (state, metrics) == ((), {})
        return stage.decode(encoded, update)

    return jax.jit(jax.vmap(once))(keys)


class TestQuantize:
    """Few levels, at random, without bias."""

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    @pytest.mark.parametrize("bits", BITS)
    def test_its_mean_is_the_update_and_its_error_less_than_a_level(self, bits, dtype):
        update = jnp.linspace(-1.7, 1.3, 31).astype(dtype)
        found = there_and_back(bits, update, jax.random.split(jax.random.key(0), DRAWS))
        assert found.dtype == dtype
        exact, found = np.asarray(update, np.float64), np.asarray(found, np.float64)
        level = 1.7 / (2 ** (bits - 1) - 1)
        rounding = 1.7 * float(jnp.finfo(dtype).eps)  # of the type itself
        assert abs(found - exact).max() <= level * (1 + 1e-3) + rounding
        np.testing.assert_allclose(
            found.mean(axis=0), exact, atol=5 * level / 2 / math.sqrt(DRAWS) + rounding
        )

    @given(seed=st.integers(0, 1000), scale=st.floats(1e-6, 1e6), bits=st.sampled_from([2, 8, 16]))
    def test_the_largest_and_zeros_arrive_as_they_are(self, seed, scale, bits):
        update = np.array(UPDATES * scale, np.float32)
        update[:, 1] = 0
        place = np.unravel_index(np.argmax(abs(update)), update.shape)
        found = np.asarray(
            there_and_back(bits, jnp.asarray(update), jax.random.split(jax.random.key(seed), 4))
        )
        np.testing.assert_array_equal(found[:, :, 1], 0)
        np.testing.assert_allclose(found[(slice(None), *place)], update[place], rtol=1e-6)

    def test_nothing_at_all_arrives_as_it_is(self):
        for update in (jnp.zeros(3), jnp.zeros((0, 2))):
            found = there_and_back(4, update, jax.random.split(jax.random.key(0), 2))
            np.testing.assert_array_equal(found, np.zeros((2, *update.shape)))

    @pytest.mark.parametrize(
        ("bits", "kind"), [(2, "int8"), (8, "int8"), (9, "int16"), (16, "int16")]
    )
    def test_numbers_are_of_whole_bytes(self, bits, kind):
        update = {"w": jnp.asarray(UPDATES), "b": jnp.ones(3)}
        (whole, largest), _, _ = fedmom.quantize(bits=bits).encode(
            update, (), (), jax.random.key(0)
        )
        assert {leaf.dtype.name for leaf in jax.tree.leaves(whole)} == {kind}
        assert float(largest["b"]) == 1
        assert abs(whole["w"]).max() <= 2 ** (bits - 1) - 1

    @pytest.mark.parametrize(("bits", "size"), [(8, 15 + 8), (16, 30 + 8)])
    def test_in_a_run_less_is_sent_and_nearly_the_same_learned(self, bits, size):
        data = population([30, 50, 80])
        model = fedmom.build_model("logreg", data.features)
        work = fedmom.LocalWork(lr=0.5, steps=3)
        found = []
        for stages in ((), (fedmom.quantize(bits=bits),)):
            algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work, stages=stages)
            runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
            *_, (state, record) = fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=3)
            found.append((jax.flatten_util.ravel_pytree(state.params)[0], record.bytes_up))
        assert [bytes_up for _, bytes_up in found] == [2 * 60, 2 * size]
        np.testing.assert_allclose(found[1][0], found[0][0], atol=0.02)
        assert (found[1][0] != found[0][0]).any()

    def test_clients_and_rounds_are_rounded_independently(self):
        """Or the errors would not cancel in the mean."""
        data = population([4, 4])
        model = fedmom.Model(lambda _key: jnp.zeros(500), apply=no_net)

        def run(params, state, _problem, _key):
            update = jnp.full(params.shape, 0.1).at[0].set(1.0)
            return update, state, {"loss": jnp.ones(())}

        algorithm = fedavg(client=fedmom.Client(run), stages=(fedmom.quantize(bits=2),))
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
        rows = []
        for t in range(2):
            runtime.ask(t, np.arange(2), jnp.zeros(500))
            rows += [np.asarray(row) for b in runtime.replies() for row in b.update[0][:, 1:]]
        correlations = np.corrcoef(np.array(rows, float))[np.triu_indices(4, 1)]
        np.testing.assert_allclose(correlations, 0, atol=5 / math.sqrt(499))

    @pytest.mark.parametrize("bits", [1, 0, 17, -3])
    def test_a_number_of_bits_that_is_none_is_refused(self, bits):
        with pytest.raises(fedmom.FedMomError, match=f"bits={bits} must be from 2 to 16"):
            fedmom.quantize(bits=bits)


class TestNoise:
    """Gaussian noise on the aggregate, other noise in every round."""

    def steps(self, std, count=3, params=None, answers=lambda *_: []):
        """What rounds add to the model."""
        algorithm = fedavg("uniform", stages=(fedmom.noise(std=std),))
        params = jnp.zeros(20_000) if params is None else params
        found = rounds(Scripted(answers), algorithm, count, params=params)
        models = [np.asarray(params), *(np.asarray(state.params) for state, _ in found)]
        return -np.diff(models, axis=0), found[-1][1]

    def test_its_spread_is_as_asked_and_rounds_are_independent(self):
        steps, record = self.steps(0.5)
        n = steps.shape[1]
        np.testing.assert_allclose(steps.std(axis=1), 0.5, atol=5 * 0.5 / math.sqrt(2 * n))
        np.testing.assert_allclose(steps.mean(axis=1), 0, atol=5 * 0.5 / math.sqrt(n))
        correlations = np.corrcoef(steps)[np.triu_indices(3, 1)]
        np.testing.assert_allclose(correlations, 0, atol=5 / math.sqrt(n))
        assert record.metrics == {"noise/std": 0.5}
        again, _ = self.steps(0.5)
        np.testing.assert_array_equal(again, steps)

    def test_it_is_added_to_the_aggregate_that_would_have_been(self):
        answers = Scripted().answers
        (quiet,), _ = self.steps(1e-30, 1, jnp.zeros(3), answers)
        (loud,), _ = self.steps(2.0, 1, jnp.zeros(3), answers)
        (noise,), _ = self.steps(2.0, 1, jnp.zeros(3))
        np.testing.assert_allclose(quiet, UPDATES.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(loud, quiet + noise, rtol=1e-4, atol=1e-5)

    def test_arrays_have_noise_of_their_own_and_keep_their_types(self):
        zeros = {"a": jnp.zeros(5000), "b": jnp.zeros((50, 100), jnp.bfloat16)}
        here = Round(0, jax.random.key(0), 1, 1.0, 1.0)
        noisy, _, _ = fedmom.noise(std=1.0).after(zeros, (), here)
        assert jax.tree.map(lambda x: x.dtype, noisy) == jax.tree.map(lambda x: x.dtype, zeros)
        both = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(noisy)]
        assert abs(np.corrcoef(both)[0, 1]) < 5 / math.sqrt(5000)

    @pytest.mark.parametrize("std", [0, -1, math.inf, math.nan])
    def test_a_deviation_that_is_none_is_refused(self, std):
        with pytest.raises(fedmom.FedMomError, match=r"noise: std .* must be a number greater"):
            fedmom.noise(std=std)
