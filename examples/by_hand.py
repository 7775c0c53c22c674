"""The paper in NumPy, without the package. Run: python examples/by_hand.py

Algorithms 1, 2 and 3 for softmax regression, on six clients of very unequal size. A test
shows that the package gives the same models, round by round.
"""

import numpy as np


def gradient(w, x, y):
    """Gradient of the mean cross-entropy of softmax(x w) on a batch."""
    z = np.exp(x @ w - (x @ w).max(axis=1, keepdims=True))
    p = z / z.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y)


def client(w, x, y, batches, lr):
    """Algorithm 2: H steps of SGD from the server's model, one for each batch of rows."""
    for rows in batches:
        w = w - lr * gradient(w, x[rows], y[rows])
    return w


def server(algorithm, w, clients, rounds, draw, lr, eta, beta=0.9):
    """Algorithm 1 (fedavg) or 3 (fedmom). `draw(t)` gives {client: its batches} of a round.

    FedSGD is fedavg with one batch that holds all rows of the client.
    """
    n = sum(len(y) for _, y in clients)
    v = w
    for t in range(rounds):
        g = np.zeros_like(w)
        for k, batches in draw(t).items():
            x, y = clients[k]
            g += len(y) / n * (w - client(w, x, y, batches, lr))
        if algorithm == "fedmom":
            v_next = w - eta * g
            w = v_next + beta * (v_next - v)
            v = v_next
        else:
            w = w - eta * g
        yield w


def main():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(5, 3))
    clients = []
    for size in (4, 7, 15, 40, 90, 200):
        x = rng.normal(rng.normal(size=5), 1, (size, 5))
        clients.append((x, (x @ truth).argmax(axis=1)))
    everything = [np.concatenate(part) for part in zip(*clients, strict=True)]
    sizes = [len(y) for _, y in clients]

    def draw(t, full=False):
        rng = np.random.default_rng(t)
        cohort = rng.choice(6, 2, replace=False)
        if full:
            return {k: [np.arange(sizes[k])] for k in cohort}
        return {k: rng.integers(sizes[k], size=(10, 10)) for k in cohort}

    for name in ("fedsgd", "fedavg", "fedmom"):
        draws = (lambda t: draw(t, full=True)) if name == "fedsgd" else draw
        *_, w = server(name, np.zeros((5, 3)), clients, 30, draws, lr=0.1, eta=3.0)
        accuracy = np.mean((everything[0] @ w).argmax(axis=1) == everything[1])
        print(f"{name}: accuracy {accuracy:.3f} after 30 rounds")


if __name__ == "__main__":
    main()
