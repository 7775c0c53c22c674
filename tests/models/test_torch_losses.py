"""PyTorch's losses: the mean over a batch, and its gradient, are those of torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features
from fedmom.models.losses import cross_entropy, sequence_cross_entropy, squared_error

torch = pytest.importorskip("torch", reason="torch is not installed")

from fedmom.models.torch.losses import converted  # noqa: E402

nn = torch.nn
CLASSES = Features("vector", (4,), 5)
TAGS = Features("text", (3,), 5, task="sequence")
VALUES = Features("vector", (4,), 5, task="regression")
WEIGHTS = torch.tensor([0.02, 0.0, 0.03, 0.05, 0.01])  # that add up to less than 1
BY_CLASS = {
    "plain": (CLASSES, nn.CrossEntropyLoss()),
    "smoothed": (CLASSES, nn.CrossEntropyLoss(label_smoothing=0.1)),
    "weighted": (CLASSES, nn.CrossEntropyLoss(weight=WEIGHTS)),
    "both": (CLASSES, nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2)),
    "one class ignored": (CLASSES, nn.CrossEntropyLoss(ignore_index=2)),
    "sequences": (TAGS, nn.CrossEntropyLoss()),
    "smoothed sequences": (TAGS, nn.CrossEntropyLoss(label_smoothing=0.1)),
    "logarithms": (CLASSES, nn.NLLLoss(weight=WEIGHTS, ignore_index=0)),
}
BY_VALUE = {
    "squared": nn.MSELoss(),
    "absolute": nn.L1Loss(),
    "smooth": nn.SmoothL1Loss(beta=0.3),
    "huber": nn.HuberLoss(delta=0.3),
    "labels": nn.BCEWithLogitsLoss(),
    "weighted labels": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2, 3, 4, 5])),
}


def mean(loss, labels, outputs):
    found = loss(outputs, labels)
    sums, counts = found if isinstance(found, tuple) else (found, jnp.ones(len(labels)))
    return sums.sum() / jnp.maximum(counts.sum(), 1)


def compare(loss, ours, outputs, labels, moved=False):
    given = torch.tensor(outputs, requires_grad=True)
    right = loss(given.movedim(-1, 1) if moved else given, torch.from_numpy(labels))
    right.backward()
    ours = jax.value_and_grad(lambda o: mean(ours, jnp.asarray(labels), o))(jnp.asarray(outputs))
    np.testing.assert_allclose(ours[0], right.detach(), rtol=1e-5)
    np.testing.assert_allclose(ours[1], given.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", BY_CLASS)
def test_losses_of_classes_are_torchs(name):
    features, loss = BY_CLASS[name]
    rng = np.random.default_rng(0)
    shape = (6, 3) if features is TAGS else (6,)
    labels = rng.integers(0, 5, shape)
    labels[(0,) * len(shape)] = -100 if features is TAGS else 2
    outputs = rng.normal(size=(*shape, 5)).astype(np.float32)
    if isinstance(loss, nn.NLLLoss):
        outputs = np.array(jax.nn.log_softmax(outputs))
    compare(loss, converted(loss, features), outputs, labels, moved=features is TAGS)


@pytest.mark.parametrize("name", BY_VALUE)
def test_losses_of_values_are_torchs(name):
    rng = np.random.default_rng(0)
    outputs, labels = (rng.normal(size=(6, 5)).astype(np.float32) for _ in range(2))
    if isinstance(BY_VALUE[name], nn.BCEWithLogitsLoss):
        labels = (labels > 0).astype(np.float32)
    compare(BY_VALUE[name], converted(BY_VALUE[name], VALUES), outputs, labels)


def test_plain_losses_are_the_houses_own():
    assert converted(nn.CrossEntropyLoss(), CLASSES) is cross_entropy
    assert converted(nn.CrossEntropyLoss(), TAGS) is sequence_cross_entropy
    assert fedmom.model("logreg", CLASSES, loss=nn.MSELoss()).loss is squared_error


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (nn.KLDivLoss(), "loss is KLDivLoss, a module of PyTorch. Those that FedMom has are Cross"),
        (nn.MSELoss(reduction="sum"), "MSELoss has reduction='sum'"),
        (nn.CrossEntropyLoss(weight=torch.zeros(5)), "must be finite, at least 0, and not all 0"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(5)), "Only pos_weight is known"),
    ],
)
def test_others_are_refused_by_name(loss, told):
    with pytest.raises(FedMomError, match=told):
        fedmom.model("logreg", CLASSES, loss=loss)
