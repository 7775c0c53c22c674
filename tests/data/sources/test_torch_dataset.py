"""A torch Dataset with the client of every item."""

import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError


@pytest.fixture(scope="module")
def torch():
    """Imported when a test of this file runs: it takes seconds, also where no test needs it."""
    return pytest.importorskip("torch")


def test_a_dataset_of_tensors_is_the_same_as_its_arrays(torch):
    from torch.utils.data import TensorDataset

    x, y = torch.randn(30, 4, generator=torch.manual_seed(0)), torch.arange(30) % 3
    ids = [f"c{k % 4}" for k in range(30)]
    data = fedmom.from_torch(TensorDataset(x, y), ids, test_fraction=0.2, seed=5)
    expected = fedmom.from_arrays(x.numpy(), y.numpy(), ids, test_fraction=0.2, seed=5)
    assert list(data.users) == list(expected.users)
    assert data.features == expected.features
    for name in ("x", "y"):
        np.testing.assert_array_equal(data.arrays[name], expected.arrays[name])
    np.testing.assert_array_equal([*data.train, *data.test], [*expected.train, *expected.test])


class Images:
    """As torchvision's datasets: an image as a tensor, channels first, and its class."""

    def __init__(self, pixels):
        self.pixels = pixels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index], index % 2


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_come_last_and_a_single_one_goes(torch, channels):
    from torch.utils.data import ConcatDataset

    pixels = np.random.default_rng(0).random((6, channels, 5, 4)).astype(np.float32)
    both = ConcatDataset([Images(torch.tensor(part)) for part in (pixels[:4], pixels[4:])])
    data = fedmom.from_torch(
        both, is_test=[False] * 4 + [True] * 2, partition="iid:clients=1", name="pets"
    )
    shape = (5, 4) if channels == 1 else (5, 4, 3)
    assert (data.name, data.features[:2]) == ("pets", ("image", shape))
    expected = pixels[:, 0] if channels == 1 else pixels.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(data.arrays["x"], expected)
    assert (data.train.size.tolist(), data.test.size.tolist()) == ([4], [2])


def test_tokens_stay_whole_and_labels_may_be_at_every_position(torch):
    from torch.utils.data import TensorDataset

    tokens = torch.tensor([[5, 2, 9], [1, 1, 7]])
    data = fedmom.from_torch(TensorDataset(tokens, tokens), ["a", "b"])
    assert data.features[:] == ("vector", (3,), 10, "sequence")
    assert data.arrays["x"].dtype == np.int32
    data = fedmom.from_torch(TensorDataset(tokens, tokens.float()), ["a", "b"])
    assert data.features.task == "regression"


class Endless:
    def __getitem__(self, index):
        return index, index


@pytest.mark.parametrize(
    ("dataset", "options", "says"),
    [
        ([(np.ones(2), 0), (np.ones(3), 1)], {"client_ids": [0, 1]}, r"item 1 is .*shape \(3,\)"),
        ([np.ones(2)], {"client_ids": [0]}, "item 0 of the dataset is a ndarray, not a pair"),
        ([(np.ones(2), 0, 1)], {"client_ids": [0]}, "item 0 of the dataset is a tuple, not a pair"),
        ([(np.ones(2), 0)], {}, "no client IDs given"),
        ([], {"client_ids": []}, "has no items"),
        ({0: (np.ones(2), 0)}, {"client_ids": [0]}, "dataset is .* must give pairs"),
        ({1, 2}, {"client_ids": [0]}, "cannot be read by number"),
        ([(np.ones(2), None)], {"client_ids": [0]}, "row 0 is None"),
        ([(None, 1)], {"client_ids": [0]}, "input of item 0 is None"),
        (Endless(), {"client_ids": [0]}, "cannot be read by number"),
    ],
)
def test_what_cannot_be_read_is_named(dataset, options, says):
    with pytest.raises(FedMomError, match=says):
        fedmom.from_torch(dataset, **options)
