"""The client step sizes γ that ``lr = "auto"`` takes: measured, by kind of data and algorithm."""

# Made by benchmarks/step_sizes.py, with 100 rounds of the default settings (M=2, B=10, H=10,
# population weights) on synthetic, glyphs and shakespeare:roles=100,samples=1000.
STEP_SIZES = {
    "vector": {
        "fedsgd": 0.1,
        "fedavg": 0.01,
        "fedmom": 0.001,
        "fedavgm": 0.001,
        "fedadagrad": 0.1,
        "fedadam": 0.1,
        "fedyogi": 0.1,
    },
    "image": {
        "fedsgd": 0.3,
        "fedavg": 0.1,
        "fedmom": 0.01,
        "fedavgm": 0.01,
        "fedadagrad": 0.03,
        "fedadam": 0.03,
        "fedyogi": 0.03,
    },
    "text": {
        "fedsgd": 3.0,
        "fedavg": 1.0,
        "fedmom": 0.3,
        "fedavgm": 0.3,
        "fedadagrad": 0.1,
        "fedadam": 1.0,
        "fedyogi": 1.0,
    },
}


def default_lr(kind: str, algorithm: str) -> float:
    """Return the γ for a kind of data and an algorithm.

    Args:
        kind: "vector", "image" or "text".
        algorithm: A name, with options or without; what the table does not know is taken for
            FedAvg.

    Examples:
        >>> default_lr("vector", "fedmom:") < default_lr("vector", "fedavg")
        True
    """
    row = STEP_SIZES[kind]
    return row.get(algorithm.partition(":")[0], row["fedavg"])
