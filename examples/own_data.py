"""Your own data: every reader in one line. Run: python examples/own_data.py

The data is made up here. DataFrames, CSV and Parquet files need pandas and pyarrow
(pip install 'fedmom[pandas]'). The CSV file on the command line:
fedmom run --data points.csv:client=user,label=side,test_fraction=0.2
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import fedmom

ROWS, CLIENTS = 600, 12


def points():
    """A table: users have points, each around a place of its own, above or below a line."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, CLIENTS, ROWS)
    place = rng.normal(size=(CLIENTS, 2))[user] + rng.normal(size=(ROWS, 2))
    side = np.where(place[:, 0] + place[:, 1] > 0, "above", "below")
    return pd.DataFrame({"user": user, "a": place[:, 0], "b": place[:, 1], "side": side})


def files(folder, table):
    """The same as files; and images that are bright or dark, and texts."""
    table.to_csv(folder / "points.csv", index=False)
    table.to_parquet(folder / "points.parquet")
    rng = np.random.default_rng(1)
    for client in ("ann", "bob"):
        for label, level in (("dark", 60), ("bright", 190)):
            (folder / "photos" / client / label).mkdir(parents=True)
            for k in range(10):
                pixels = rng.integers(level - 50, level + 50, (12, 12), np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / client / label / f"{k}.png")
    (folder / "letters").mkdir()
    (folder / "letters" / "ann.txt").write_text("Dear Bob, it rains again. " * 20)
    (folder / "letters" / "bob.txt").write_text("Dear Ann, here it does not. " * 20)


def populations(folder, table):
    """Every reader, with the options that all of them have."""
    x, y, user = table[["a", "b"]].to_numpy(), table["side"].to_numpy(), table["user"].to_numpy()
    pairs = list(zip(x, y, strict=True))  # or a torch Dataset
    dealt = "dirichlet:alpha=0.5,clients=10"
    return {
        "arrays": fedmom.from_arrays(x, y, user, test_fraction=0.2),
        "arrays, dealt": fedmom.from_arrays(x, y, partition=dealt, test_fraction=0.2),
        "pairs": fedmom.from_torch(pairs, user, test_fraction=0.2),
        "DataFrame": fedmom.from_dataframe(table, client="user", label="side", test_fraction=0.2),
        "CSV": fedmom.from_csv(
            folder / "points.csv", client="user", label="side", test_fraction=0.2
        ),
        "Parquet": fedmom.from_parquet(
            folder / "points.parquet", label="side", features="a+b", partition=dealt
        ),
        "images": fedmom.from_images(folder / "photos", size=8, test_fraction=0.2),
        "texts": fedmom.from_texts(folder / "letters", window=20, test_fraction=0.2),
    }


def accuracy(data):
    """Train logistic regression by FedAvg, and return its accuracy on the test samples."""
    model = fedmom.build_model("logreg", data.features)
    work, rule = fedmom.LocalWork(lr=0.1, steps=10), fedmom.mean("cohort")
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work, rule=rule)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    pace = fedmom.synchronous(min(5, data.clients))
    *_, (state, _) = fedmom.train(runtime, pace=pace, rounds=20)
    return fedmom.evaluate(runtime, state.params, "test").accuracy


def main():
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name), points()
        files(folder, table)
        for kind, data in populations(folder, table).items():
            rows = int(data.train.size.sum()), int(data.test.size.sum())
            print(f"{kind}: {data.clients} clients, {rows} samples, {data.features}")
            if kind in ("CSV", "images"):
                print(f"  {', '.join(data.class_names)}: accuracy {accuracy(data):.3f}")


if __name__ == "__main__":
    main()
