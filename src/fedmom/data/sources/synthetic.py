"""Synthetic(α, β): the logistic problem of FedProx and LEAF, generated."""

from typing import Annotated

import numpy as np

from fedmom.core.arguments import checked
from fedmom.core.validation import Between, Seed, check_memory
from fedmom.data.federated import Features, FederatedData, Split

DIMENSION, CLASSES = 60, 10
WIDEST, MOST_CLIENTS = 1e6, 10**6


@checked
def synthetic(
    *,
    alpha: Annotated[float, Between(0, WIDEST)] = 1.0,
    beta: Annotated[float, Between(0, WIDEST)] = 1.0,
    clients: Annotated[int, Between(1, MOST_CLIENTS)] = 30,
    seed: Seed = 0,
) -> FederatedData:
    """FedProx's Synthetic(alpha, beta): alpha spreads the clients' models, beta their inputs.

    For client k, u_k ~ N(0, α) and B_k ~ N(0, β), both as standard deviations (as in the
    FedProx authors' generator); model W_k, b_k ~ N(u_k, 1); mean v_k ~ N(B_k, 1); inputs
    x ~ N(v_k, diag(j^-1.2)); labels y = argmax(W_k x + b_k). Sizes are lognormal(4, 2) + 50,
    nine tenths for training.

    Know that u_k moves all logits of a sample alike, so that α changes no label: clients
    differ by their own draw of W_k, whatever α is. So it was published, and so it is here.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(4, 2, clients).astype(np.int64) + 50
    room = int(sizes.sum()) * DIMENSION * 4
    check_memory(f"synthetic:clients={clients}", room, "Use fewer clients.")
    scale = np.sqrt(np.arange(1, DIMENSION + 1) ** -1.2)
    x = np.empty((sizes.sum(), DIMENSION), np.float32)
    y = np.empty(len(x), np.uint8)
    begin = np.cumsum(sizes) - sizes
    for first, size in zip(begin, sizes, strict=True):
        rows = slice(first, first + size)
        u, b = rng.normal(0, alpha), rng.normal(0, beta)
        weights = rng.normal(u, 1, (DIMENSION, CLASSES))
        bias = rng.normal(u, 1, CLASSES)
        mean = rng.normal(b, 1, DIMENSION)
        inputs = mean + scale * rng.normal(size=(size, DIMENSION))
        x[rows], y[rows] = inputs, np.argmax(inputs @ weights + bias, axis=1)
    train = sizes * 9 // 10
    users = [f"client{k}" for k in range(clients)]
    features = Features("vector", (DIMENSION,), CLASSES)
    parts = Split(begin, train), Split(begin + train, sizes - train)
    return FederatedData("synthetic", users, features, {"x": x, "y": y}, *parts)
