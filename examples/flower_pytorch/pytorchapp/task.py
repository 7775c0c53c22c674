"""The net, and data that every client makes for itself: three classes around three points."""

import torch

CLASSES, FEATURES = 3, 8


def net() -> torch.nn.Module:
    return torch.nn.Linear(FEATURES, CLASSES)


def samples(client: int) -> tuple[torch.Tensor, ...]:
    """Training and test samples of a client, which sees one class more often than the others."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    own = torch.Generator().manual_seed(1000 + client)
    count = 60 + 20 * client
    shares = torch.ones(CLASSES)
    shares[client % CLASSES] = 4.0
    y = torch.multinomial(shares, count, replacement=True, generator=own)
    x = centres[y] + 0.5 * torch.randn(count, FEATURES, generator=own)
    cut = count * 4 // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]


def train_net(model: torch.nn.Module, x, y, lr: float, steps: int, batch: int = 10) -> float:
    """Take some steps of SGD; return the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    total = 0.0
    for _ in range(steps):
        rows = torch.randint(len(y), (batch,))
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def accuracy(model: torch.nn.Module, x, y) -> float:
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
