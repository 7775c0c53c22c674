"""Sequences of different lengths: loss, gradient and metrics over the positions that count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.api.trained_model import over_data
from fedmom.data.given import conformed, relabelled
from fedmom.data.schema import Schema
from fedmom.data.store.writer import save_store
from fedmom.data.summary import faults, label_mix, unseen_labels
from fedmom.models import METRICS, losses

CLASSES, PAD = 4, 9
LENGTHS = ((5, 2), (1, 3, 4))  # of the sequences of two clients
RNG = np.random.default_rng(5)
X = [RNG.integers(0, 6, n).tolist() for client in LENGTHS for n in client]
Y = [RNG.integers(0, CLASSES, n).tolist() for n in map(len, X)]
Y[0][1] = -100  # inside a sequence, too
WHOSE = [0, 0, 1, 1, 1]
START = RNG.normal(size=(PAD + 1, CLASSES))
LR = 0.5


def table(w, x, _key):
    """A net that has a row of logits for every token."""
    return w[x]


def counted(rows):
    """The pairs (token, label) of the positions that count."""
    return [(t, c) for row in rows for t, c in zip(X[row], Y[row], strict=True) if c != -100]


def by_hand(w, rows):
    """The mean cross-entropy over the positions of some sequences, and its gradient."""
    total, gradient, pairs = 0.0, np.zeros_like(w), counted(rows)
    for token, label in pairs:
        p = np.exp(w[token]) / np.exp(w[token]).sum()
        total -= np.log(p[label])
        gradient[token] += (p - np.eye(CLASSES)[label]) / len(pairs)
    return total / len(pairs), gradient


@pytest.fixture
def data():
    return fedmom.from_arrays(X, Y, WHOSE, is_test=[False] * 5, pad=PAD)


def runtime_of(data, work, *, stateful=False):
    def init(_key):
        return (jnp.asarray(START), {"seen": jnp.zeros(())}) if stateful else jnp.asarray(START)

    def with_state(w, state, x, key):
        return table(w, x, key), {"seen": state["seen"] + 1}

    net = (init, with_state if stateful else table)
    metrics = ["position_accuracy", "perplexity", "position_top:k=2", "f1:average=micro", "f1"]
    model = fedmom.model(net, data, has_state=stateful, metrics=metrics)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
    return fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))


@pytest.mark.parametrize("how", ["batches", "epoch", "epoch with state", "whole data"])
def test_a_step_is_the_mean_over_positions(data, how):
    """As of PyTorch's CrossEntropyLoss(ignore_index=-100): not a mean of means of sequences."""
    works = {
        "batches": fedmom.LocalWork(lr=LR, steps=1, batch_size=1),
        "whole data": fedmom.LocalWork(lr=LR, steps=1, batch_size=None),
    }
    work = works.get(how, fedmom.LocalWork(lr=LR, epochs=1, batch_size=8))
    runtime = runtime_of(data, work, stateful=how == "epoch with state")
    runtime.ask(0, np.array([0, 1]), fedmom.start(runtime.workload).params)
    for block in runtime.replies():
        for client, update, loss in zip(
            block.clients, _rows(block.update), block.metrics["loss"], strict=True
        ):
            rows = [row for row in range(5) if WHOSE[row] == client]
            if how == "batches":  # of one sequence, whichever was drawn
                found = [by_hand(START, [row]) for row in rows]
                near = min(found, key=lambda pair: abs(pair[0] - loss))
            else:
                near = by_hand(START, rows)
            np.testing.assert_allclose(loss, near[0], rtol=1e-5)
            np.testing.assert_allclose(update / LR, near[1], atol=1e-6)


def _rows(update):
    return jax.tree.leaves(update)[0]


def test_metrics_count_positions(data):
    """Means over all clients' positions, percentiles over the clients' own means."""
    runtime = runtime_of(data, fedmom.LocalWork(lr=LR, steps=1))
    found = fedmom.evaluate(runtime, jnp.asarray(START), "train")
    whole, own = range(5), ([0, 1], [2, 3, 4])
    assert found.loss == pytest.approx(by_hand(START, whole)[0], rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(by_hand(START, whole)[0]), rel=1e-5)

    def share(rows, k):
        hits = [label in np.argsort(START[token])[-k:] for token, label in counted(rows)]
        return np.mean(hits)

    for k, name in ((1, "position_accuracy"), (2, "position_top2"), (1, "f1_micro")):
        values = [share(rows, k) for rows in own]
        assert getattr(found, name) == pytest.approx(share(whole, k))
        assert getattr(found, f"{name}_p50") == pytest.approx(np.mean(values))
    pairs = [(int(np.argmax(START[token])), label) for token, label in counted(whole)]
    scores = []
    for c in {c for pair in pairs for c in pair}:
        right = sum(pair == (c, c) for pair in pairs)
        scores.append(2 * right / sum((p == c) + (t == c) for p, t in pairs))
    assert found.f1 == pytest.approx(np.mean(scores))


def test_the_area_leaves_positions_out_that_do_not_count():
    """Of two classes at every position, as if the others were not there."""
    metric = METRICS.build("auc")
    out, y = RNG.normal(size=(3, 6, 2)), RNG.integers(0, 2, (3, 6))
    marked = np.where(RNG.random((3, 6)) < 0.3, -100, y)
    keep = marked >= 0
    few = metric.per_sample(jnp.asarray(out[keep][None]), jnp.asarray(y[keep][None]))
    rows = metric.per_sample(jnp.asarray(out), jnp.asarray(marked))
    np.testing.assert_array_equal(np.asarray(rows).sum(0), np.asarray(few).sum(0))


def test_loss_and_gradient_are_those_of_torch():
    torch = pytest.importorskip("torch")
    logits = RNG.normal(size=(3, 7, CLASSES)).astype(np.float32)
    labels = np.where(RNG.random((3, 7)) < 0.4, -100, RNG.integers(0, CLASSES, (3, 7)))

    def mean(z):
        total, count = losses.sequence_cross_entropy(z, jnp.asarray(labels))
        return total.sum() / count.sum()

    given = torch.tensor(logits, requires_grad=True)
    flat = given.reshape(-1, CLASSES), torch.tensor(labels.reshape(-1))
    right = torch.nn.CrossEntropyLoss(ignore_index=-100)(*flat)
    right.backward()
    value, gradient = jax.value_and_grad(mean)(jnp.asarray(logits))
    np.testing.assert_allclose(value, right.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, given.grad.numpy(), atol=1e-6)


def test_a_loss_of_two_numbers_is_checked():
    model = fedmom.Model(lambda _key: START, table, loss=lambda out, _y: (out.sum(), out.sum()))
    with pytest.raises(fedmom.FedMomError, match=r"shape \(\) for 5 samples"):
        model.loss_sums(jnp.zeros((5, 2)), jnp.zeros(5))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One that was trained on labels with names."""
    names = [["abcd"[max(label, 0)] for label in row] for row in Y]
    data = fedmom.from_arrays(X, names, WHOSE, pad=PAD)
    model = fedmom.model((lambda _key: jnp.asarray(START), table), data)
    out = tmp_path_factory.mktemp("sequences") / "run"
    options = {"rounds": 1, "lr": 0.01, "clients_per_round": 2, "progress": False}
    return fedmom.run(data, model, out=out, **options)


def test_inputs_of_other_lengths_are_filled_up(run):
    found = run.outputs([[2], [3, 4]])
    assert found.shape == (2, 5, CLASSES)
    np.testing.assert_array_equal(found[1], run.params[jnp.array([3, 4, PAD, PAD, PAD])])
    for longer in ([[1, 2, 3, 4, 5, 0]], np.ones((1, 6), int)):
        with pytest.raises(fedmom.FedMomError, match=r"row 0 is too long .* from 1 to 5 values"):
            run.predict(longer)


def test_predictions_of_data_leave_out_what_does_not_count(run):
    """Other data, shorter and without names, is filled up to the model's length."""
    other = fedmom.from_arrays([[3, 4], [5]], [["b", "a"], ["x"]], [0, 1], pad=PAD)
    data = conformed(other, run.schema)
    assert data.arrays["x"].tolist() == [[3, 4, PAD, PAD, PAD], [5, PAD, PAD, PAD, PAD]]
    (part,) = over_data(run, data, ["train"])
    assert part.labels.tolist() == [["b", "a", "", "", ""], ["x", "", "", "", ""]]
    predicted = ["abcd"[np.argmax(START[token])] for token in (3, 4, 5)]
    assert part.right.tolist() == [a == b for a, b in zip("bax", predicted, strict=True)]
    assert part.known.tolist() == [[True] * 5, [False, True, True, True, True]]
    for wrong, says in (({"pad": 8}, "padding 8 and no tokenizer"), ({}, "no padding")):
        rows = [[1, 2, 3, 4, 5]], [[0, 1, 2, 3, 0]], [0]
        other = fedmom.from_arrays(*rows, task="sequence", **wrong)
        with pytest.raises(fedmom.FedMomError, match=rf"has {says}.* trained with padding 9"):
            conformed(other, run.schema)


def test_data_to_train_on_keeps_what_does_not_count(run):
    """Labels get the model's numbers."""
    other = fedmom.from_arrays(
        [[3, 4, 1, 2, 0], [5]], [["d", "a", "a", "b", "d"], ["b"]], [0, 1], pad=PAD
    )
    found = relabelled(conformed(other, run.schema), run.schema)
    assert found.arrays["y"].tolist() == [[3, 0, 0, 1, 3], [1, -100, -100, -100, -100]]


def test_a_store_keeps_padding_and_labels_that_do_not_count(data, tmp_path):
    save_store(data, tmp_path / "store", {})
    found = fedmom.load_data(tmp_path / "store")
    assert found.tokens == data.tokens == (PAD, None, None, None)
    np.testing.assert_array_equal(found.arrays["y"], data.arrays["y"])
    assert Schema.from_json(Schema.of(found).to_json(), "here") == Schema.of(data)
    labels = [label for row in range(2) for _, label in counted([row])]
    assert label_mix(found, 0).tolist() == np.bincount(labels, minlength=CLASSES).tolist()
    assert unseen_labels(found) == [] == faults(found)
