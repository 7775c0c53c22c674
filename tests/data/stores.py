"""Small packed stores, for tests."""

import numpy as np

from fedmom.data.federated import Features
from fedmom.data.sources.shakespeare import from_roles
from fedmom.data.store.writer import Packer

IMAGES = {"x": ("uint8", (4, 4)), "y": ("uint8", ())}


def packer(folder, columns=IMAGES, features=None, name="test"):
    features = features or Features("image", (4, 4), 10)
    return Packer(folder, name=name, features=features, columns=columns, source={"made": "here"})


def one_client_store(folder):
    with packer(folder) as pack:
        pack.add("a", {"x": np.ones((3, 4, 4)), "y": np.arange(3)}, train=(0, 2), test=(2, 1))
    return folder


def texts(seed=0, lengths=(1500, 950, 3000)):
    rng = np.random.default_rng(seed)
    return from_roles(
        "t", {f"r{i}": "".join(rng.choice(list("abc de"), n)) for i, n in enumerate(lengths)}
    )
