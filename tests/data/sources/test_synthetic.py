"""The synthetic problem against the laws it is drawn from."""

import numpy as np

from fedmom.data import load


def test_synthetic_sizes_and_shapes():
    data = load("synthetic:clients=50")
    total = data.train.size + data.test.size
    assert data.arrays["x"].shape == (total.sum(), 60)
    assert (total >= 50).all()
    assert total.std() > total.mean() / 2  # lognormal(4, 2): very unequal
    np.testing.assert_array_equal(data.train.size, total * 9 // 10)


def test_synthetic_inputs_have_the_stated_covariance():
    data = load("synthetic:clients=60,seed=1")
    k = int(np.argmax(data.train.size))
    rows = slice(int(data.train.start[k]), int(data.train.start[k] + data.train.size[k]))
    variance = data.arrays["x"][rows].var(axis=0)
    expected = np.arange(1, 61) ** -1.2
    error = 6 * expected * np.sqrt(2 / data.train.size[k])  # of a variance estimate
    assert (np.abs(variance - expected) < error).all()


def test_beta_spreads_the_clients_inputs():
    def spread(beta):
        data = load(f"synthetic:beta={beta},clients=40")
        return np.std(
            [data.arrays["x"][s : s + n].mean() for s, n in zip(*data.train, strict=True)]
        )

    # The mean of a client's inputs is B_k + noise of variance 1/60, with B_k ~ N(0, β).
    assert spread(0) < 2 * np.sqrt(1 / 60)
    assert 0.5 * 5 < spread(5) < 1.5 * 5


def test_alpha_moves_all_logits_alike_and_so_no_label():
    data = [load(f"synthetic:alpha={a}").arrays for a in (0, 5)]
    np.testing.assert_array_equal(data[0]["x"], data[1]["x"])
    np.testing.assert_array_equal(data[0]["y"], data[1]["y"])
