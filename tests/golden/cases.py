"""Runs whose numbers are kept in ``numbers/``: their settings, and the files some of them read.

Nothing here imports fedmom, so that any version of it can be asked for the same runs.
"""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Settings = dict[str, object]

# Clients of 61 to 221 training samples, and logreg's 610 parameters: they run a few in one call.
SYNTHETIC: Settings = {
    "data": "synthetic:clients=6",
    "algorithm": "fedmom",
    "rounds": 4,
    "clients-per-round": 2,
    "lr": 0.01,
    "eval-every": 2,
}
# Clients of 45 to 800 training samples; 3,900 in all, so that an evaluation takes several calls.
MANY: Settings = {**SYNTHETIC, "data": "synthetic:clients=24", "rounds": 3, "eval-every": 3}
# 100 steps of 10 samples: 610,000 parameters x samples, which is not SHORT. They run in threads.
LONG: Settings = {**SYNTHETIC, "local-steps": 100, "rounds": 3}
GLYPHS: Settings = {
    **SYNTHETIC,
    "data": "glyphs:writers=6,samples=20",
    "algorithm": "fedavg",
    "rounds": 3,
    "lr": 0.05,
}
SMALL_PERCEPTRON = "mlp:hidden=4,layers=1"
TEXT: Settings = {
    **SYNTHETIC,
    "data": "shakespeare:roles=4,samples=900",
    "model": "char_lstm:embedding=3,hidden=8",
    "rounds": 3,
    "lr": 0.3,
}
# Data from files: 9 clients of 4 to 28 vectors.
FILES: Settings = {**SYNTHETIC, "rounds": 3, "clients-per-round": 3, "lr": 0.1}

# Data may name a file of `make_files`, or a store of PREPARED, in braces.
CASES: dict[str, Settings] = {
    # Every algorithm, with its defaults and away from them.
    "algorithm_fedsgd": {**SYNTHETIC, "algorithm": "fedsgd"},
    "algorithm_fedavg": {**SYNTHETIC, "algorithm": "fedavg"},
    "algorithm_fedmom": SYNTHETIC,
    "algorithm_fedmom_zero_start": {**SYNTHETIC, "algorithm": "fedmom_zero_start"},
    "algorithm_fedavgm": {**SYNTHETIC, "algorithm": "fedavgm"},
    "algorithm_fedadagrad": {**SYNTHETIC, "algorithm": "fedadagrad"},
    "algorithm_fedadam": {**SYNTHETIC, "algorithm": "fedadam"},
    "algorithm_fedyogi": {**SYNTHETIC, "algorithm": "fedyogi"},
    "algorithm_diloco": {**SYNTHETIC, "algorithm": "diloco"},
    "momentum_0": {**SYNTHETIC, "momentum": 0},
    "momentum_half": {**SYNTHETIC, "momentum": 0.5},
    "momentum_0_zero_start": {**SYNTHETIC, "algorithm": "fedmom_zero_start", "momentum": 0},
    "momentum_half_fedavgm": {**SYNTHETIC, "algorithm": "fedavgm", "momentum": 0.5},
    "momentum_half_fedadagrad": {**SYNTHETIC, "algorithm": "fedadagrad", "momentum": 0.5},
    "server_lr": {**SYNTHETIC, "server-lr": 1.5},
    "server_lr_fedavg": {
        **SYNTHETIC,
        "algorithm": "fedavg",
        "server-lr": "exponential:start=3,rate=0.7",
    },
    "server_lr_fedmom": {**SYNTHETIC, "server-lr": "cosine:start=3,rounds=4"},
    "server_lr_fedavgm": {
        **SYNTHETIC,
        "algorithm": "fedavgm",
        "server-lr": "step:start=3,rate=0.5,rounds=2",
    },
    "server_lr_fedadam": {
        **SYNTHETIC,
        "algorithm": "fedadam",
        "server-lr": "inverse_sqrt:start=0.1,rounds=2",
    },
    "average_fedavg": {**SYNTHETIC, "algorithm": "fedavg", "average": 0.9},
    "average_fedmom": {**SYNTHETIC, "average": 0.9},
    "average_schedule": {**SYNTHETIC, "average": 0.9, "server-lr": "linear:start=3,end=1,rounds=3"},
    # Weights of the updates.
    "weighting_population": {**SYNTHETIC, "clients-per-round": 3, "weighting": "population"},
    "weighting_cohort": {**SYNTHETIC, "clients-per-round": 3, "weighting": "cohort"},
    "weighting_uniform": {**SYNTHETIC, "clients-per-round": 3, "weighting": "uniform"},
    # Local work.
    "steps_random": {**SYNTHETIC, "local-steps": 7, "batch-size": 6},
    "steps_shuffled": {**SYNTHETIC, "local-steps": 25, "batches": "shuffled"},
    "steps_all": {**SYNTHETIC, "local-steps": 3, "batch-size": "all"},
    "steps_schedule": {**SYNTHETIC, "local-steps": "linear:start=12,end=2,rounds=3"},
    "epochs_shuffled": {**SYNTHETIC, "local-epochs": 1},
    "epochs_several": {**SYNTHETIC, "local-epochs": 3, "batch-size": 7},
    "epochs_fraction": {**SYNTHETIC, "local-epochs": 0.4},
    "epochs_one_and_a_half": {**SYNTHETIC, "local-epochs": 1.5},
    "epochs_random": {**SYNTHETIC, "local-epochs": 1, "batches": "random"},
    "epochs_all": {**SYNTHETIC, "local-epochs": 2, "batch-size": "all"},
    "epochs_schedule": {**SYNTHETIC, "local-epochs": "step:start=2,rate=0.5,rounds=2"},
    "solver_sgd": {**SYNTHETIC, "algorithm": "fedavg", "solver": "sgd"},
    "solver_momentum": {**SYNTHETIC, "algorithm": "fedavg", "solver": "momentum"},
    "solver_rmsprop": {**SYNTHETIC, "algorithm": "fedavg", "solver": "rmsprop"},
    "solver_adam": {**SYNTHETIC, "algorithm": "fedavg", "solver": "adam"},
    "solver_adamw": {**SYNTHETIC, "algorithm": "fedavg", "solver": "adamw"},
    "prox": {**SYNTHETIC, "prox": 0.5},
    "prox_epochs_adam": {**SYNTHETIC, "prox": 0.5, "local-epochs": 1, "solver": "adam"},
    "prox_all": {**SYNTHETIC, "prox": 0.5, "batch-size": "all"},
    "lr_linear": {**SYNTHETIC, "lr": "linear:start=0.02,end=0.005,rounds=3"},
    "lr_cosine": {**SYNTHETIC, "lr": "cosine:start=0.02,rounds=4,end=0.001"},
    "lr_exponential": {**SYNTHETIC, "lr": "exponential:start=0.02,rate=0.8"},
    "lr_inverse": {**SYNTHETIC, "lr": "inverse:start=0.02,rounds=2"},
    "lr_inverse_sqrt": {**SYNTHETIC, "lr": "inverse_sqrt:start=0.02"},
    "lr_step": {**SYNTHETIC, "lr": "step:start=0.02,rate=0.5,rounds=2"},
    "seed_largest": {**SYNTHETIC, "seed": 2**32 - 1},
    # Cohorts: sums go in groups of 8, and so do the clients of one call.
    "cohort_1": {**MANY, "clients-per-round": 1},
    "cohort_8": {**MANY, "clients-per-round": 8},
    "cohort_9": {**MANY, "clients-per-round": 9},
    "cohort_10": {**MANY, "clients-per-round": 10, "weighting": "cohort"},
    "cohort_20": {**MANY, "clients-per-round": 20},
    "cohort_20_epochs": {**MANY, "clients-per-round": 20, "local-epochs": 1},
    "cohort_all_fedsgd": {**MANY, "clients-per-round": 24, "algorithm": "fedsgd"},
    # A few clients in one call, or threads: 610 parameters x 819 samples are just short.
    "path_just_short": {**SYNTHETIC, "rounds": 3, "local-steps": 63, "batch-size": 13},
    "path_just_long": {**SYNTHETIC, "rounds": 3, "local-steps": 82, "batch-size": 10},
    "path_changes_by_schedule": {**SYNTHETIC, "local-steps": "linear:start=70,end=100,rounds=3"},
    "path_changes_by_cohort": {**SYNTHETIC, "rounds": 5, "local-epochs": 4},
    "long_steps": LONG,
    "long_cohort_10": {**LONG, "data": "synthetic:clients=24", "clients-per-round": 10},
    "long_shuffled": {
        **LONG,
        "data": "synthetic:clients=24",
        "local-steps": 90,
        "batches": "shuffled",
    },
    "long_all": {**LONG, "local-steps": 20, "batch-size": "all", "clients-per-round": 5},
    "long_adam_prox": {**LONG, "solver": "adam", "prox": 0.1, "lr": 0.003},
    # Evaluation and diagnostics.
    "eval_thinned": {**SYNTHETIC, "eval-samples": 40},
    "eval_all": {**MANY, "eval-samples": "all", "eval-every": 1},
    "diagnostics": {**SYNTHETIC, "rounds": 5, "diagnostics": True, "diagnostics-every": 2},
    "diagnostics_cohort": {
        **SYNTHETIC,
        "diagnostics": True,
        "diagnostics-every": 2,
        "weighting": "cohort",
        "algorithm": "fedavg",
    },
    "diagnostics_uniform_long": {
        **LONG,
        "diagnostics": True,
        "diagnostics-every": 2,
        "weighting": "uniform",
        "clients-per-round": 3,
    },
    "diagnostics_left_open": {**SYNTHETIC, "diagnostics": True},
    # Kinds of data, and models.
    "synthetic_options": {**SYNTHETIC, "data": "synthetic:clients=5,alpha=2,beta=0,seed=2"},
    "synthetic_mlp": {**SYNTHETIC, "model": "mlp:hidden=6,layers=2"},
    "glyphs_logreg": {**GLYPHS, "model": "logreg", "lr": 0.01},
    "glyphs_mlp": {**GLYPHS, "model": SMALL_PERCEPTRON, "algorithm": "fedmom", "local-epochs": 1},
    "glyphs_fedsgd": {**GLYPHS, "model": SMALL_PERCEPTRON, "algorithm": "fedsgd"},
    "glyphs_lenet5": {**GLYPHS, "model": "lenet5", "local-steps": 2},
    "shakespeare_steps": TEXT,
    "shakespeare_long": {**TEXT, "local-steps": 40, "algorithm": "fedavg"},
    "shakespeare_epochs": {**TEXT, "local-epochs": 0.1, "solver": "adam", "lr": 0.01},
    "shakespeare_fedsgd": {**TEXT, "algorithm": "fedsgd"},
    # Files.
    "npz_vectors": {**FILES, "data": "{npz}"},
    "npz_vectors_epochs": {**FILES, "data": "{npz}", "local-epochs": 2, "weighting": "cohort"},
    "npz_pictures": {**FILES, "data": "{npz_pictures}", "model": "mlp:hidden=3,layers=1"},
    # The one model with dropout. Its large tensors are kept as a digest only.
    "npz_leaf_cnn": {
        **FILES,
        "data": "{npz_pictures}",
        "model": "leaf_cnn",
        "algorithm": "fedavg",
        "local-steps": 2,
        "clients-per-round": 2,
    },
    "leaf_pictures": {**FILES, "data": "{leaf_pictures}", "model": "mlp:hidden=2,layers=1"},
    "leaf_vectors_by_user": {**FILES, "data": "{leaf_vectors}"},
    "leaf_text": {**FILES, "data": "{leaf_text}", "model": "char_lstm:embedding=2,hidden=4"},
    "idx": {**FILES, "data": "{idx}", "model": "logreg", "clients-per-round": 20},
    "gutenberg": {**FILES, "data": "{gutenberg}", "model": "char_lstm:embedding=2,hidden=4"},
    "store_vectors": {**FILES, "data": "{store_vectors}"},
    "store_by_user": {**FILES, "data": "{store_by_user}"},
    "store_dealt": {**FILES, "data": "{store_dealt}", "model": "logreg", "local-epochs": 1},
    "store_text": {**FILES, "data": "{store_text}", "model": "char_lstm:embedding=2,hidden=4"},
    "store_text_iid": {
        **FILES,
        "data": "{store_text_iid}",
        "model": "char_lstm:embedding=2,hidden=4",
        "clients-per-round": 2,
    },
    "store_of_old_version": {**FILES, "data": "{old_store}"},
}

# Stores: what `fedmom data prepare` is asked for, without --out. Those without a case of their
# own say what a source is, for numbers/stores.json has every array's checksum.
PREPARED: dict[str, list[str]] = {
    "store_vectors": ["{npz}", "--sf", "0.8", "-k", "5", "-t", "sample", "--tf", "0.7"],
    "store_by_user": ["{npz}", "-t", "user", "--tf", "0.6", "--spltseed", "3"],
    "store_dealt": ["{idx}", "--partition", "dirichlet:clients=6,alpha=0.5", "--smplseed", "2"],
    "store_shards": ["{idx}", "--partition", "shards:clients=6,per_client=2"],
    "store_quantity": ["{idx}", "--partition", "quantity:clients=6"],
    "store_text": ["{gutenberg}", "-t", "sample", "--tf", "0.6"],
    "store_text_iid": ["{gutenberg}", "-s", "iid", "--sf", "0.5", "--iu", "0.5"],
    "as_it_is_synthetic": ["synthetic:clients=6"],
    "as_it_is_glyphs": ["glyphs:writers=6,samples=20"],
    "as_it_is_shakespeare": ["shakespeare:roles=4,samples=900"],
    "as_it_is_npz": ["{npz}"],
    "as_it_is_npz_pictures": ["{npz_pictures}"],
    "as_it_is_leaf_pictures": ["{leaf_pictures}"],
    "as_it_is_leaf_text": ["{leaf_text}"],
    "as_it_is_idx": ["{idx}"],
    "as_it_is_gutenberg": ["{gutenberg}"],
}

# The runs of folders/paper as a plan of today: fields of Scale and Task by their names, variants
# by theirs in fedmom's plan. They were made before γ had tuning seeds of its own.
PAPER_SCALE: dict[str, Any] = {
    "name": "quick",
    "rounds": 10,
    "eval_every": 2,
    "femnist": {
        "name": "FEMNIST",
        "data": "glyphs:writers=12,samples=12",
        "settings": {"model": "mlp:hidden=1,layers=1", "local-epochs": 1, "eval-samples": 100},
        # The last diverges.
        "first_lrs": {"fedsgd": (0.1,), "fedavg": (0.03, 1e38), "fedmom": (0.03, 1e38)},
        "lrs": (0.03, 1e38),
        "seeds": (0, 1),
        "tuning": (0, 1),
        "few": 2,
        "fedsgd_share": 1,
        "cost": 1,
    },
    "shakespeare": {
        "name": "Shakespeare",
        "data": "synthetic:clients=5",
        "settings": {"model": "logreg", "local-steps": 3, "eval-samples": 100},
        "first_lrs": {"fedavg": (0.01,), "fedmom": (0.01,)},
        "lrs": (),
        "seeds": (0,),
        "tuning": (0,),
        "few": 0,
        "fedsgd_share": 0.5,
        "cost": 2,
    },
    "epochs": (0.5, 1),
    "variants": ("PAPER",),
    "window": 3,
}

_SIZES = (12, 4, 28, 9, 17, 6, 21, 8, 15)  # samples of the clients in files
_WORDS = ["my", "lord", "the", "king", "is", "come", "to", "see", "what", "light", "and", "sleeps"]


def make_files(folder: Path) -> dict[str, Path]:
    """Write the files that cases read, the same whenever and wherever; return them by name.

    ``old_store`` is not made: it was written by `fedmom data prepare` of the old version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    return {
        "npz": _npz(folder / "vectors.npz", rng, *_vectors(rng, sum(_SIZES))),
        "npz_pictures": _npz(folder / "pictures.npz", rng, *_pictures(rng, sum(_SIZES), 12, 4)),
        "leaf_pictures": _leaf_pictures(folder / "leaf_pictures", rng),
        "leaf_vectors": _leaf_vectors(folder / "leaf_vectors", rng),
        "leaf_text": _leaf_text(folder / "leaf_text", rng),
        "idx": _idx(folder / "idx", rng),
        "gutenberg": _gutenberg(folder / "works.txt", rng),
        "old_store": Path(__file__).parent / "folders" / "store",
    }


def make_paper_files(folder: Path) -> dict[str, Path]:
    """Write two small populations for `fedmom paper`: 12 clients for FEMNIST, 10 for texts."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    found = {}
    for name, clients in (("pictures", 12), ("texts", 10)):
        x, y = _vectors(rng, 20 * clients)
        found[name] = folder / f"{name}.npz"
        np.savez(
            found[name],
            x=x,
            y=y,
            user=np.repeat(np.arange(clients), 20),
            users=np.array([f"u{k}" for k in range(clients)]),
            is_test=np.arange(len(y)) % 20 >= 15,
        )
    return found


def _vectors(rng: np.random.Generator, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and labels in numbers so round that no machine rounds them otherwise."""
    x = (rng.integers(-16, 17, (rows, 5)) / 8).astype(np.float32)
    return x, (x @ rng.integers(-3, 4, (5, 4)).astype(np.float32)).argmax(1)


def _pictures(
    rng: np.random.Generator, rows: int, side: int, classes: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return noise with a bright band at a height that is the label's."""
    y = rng.permutation(np.arange(rows) % classes)
    x = rng.integers(0, 120, (rows, side, side))
    high = np.arange(side) * classes // side == y[:, None]
    return (x + 130 * high[:, :, None]).astype(np.uint8), y


def _npz(path: Path, rng: np.random.Generator, x: NDArray[Any], y: NDArray[Any]) -> Path:
    """Write clients whose rows lie in no order, with a fourth of them for testing."""
    user = np.repeat(np.arange(len(_SIZES)), _SIZES)
    is_test = np.concatenate([np.arange(n) % 4 == 3 for n in _SIZES])
    order = rng.permutation(len(y))
    np.savez(
        path,
        x=x,
        y=y,
        user=user[order],
        users=np.array([f"u{k}" for k in range(len(_SIZES))]),
        is_test=is_test[order],
    )
    return path


def _write_leaf(path: Path, clients: dict[str, tuple[list[Any], list[Any]]]) -> None:
    content = {
        "users": list(clients),
        "num_samples": [len(y) for _, y in clients.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in clients.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _leaf_pictures(folder: Path, rng: np.random.Generator) -> Path:
    """Write pictures of 28 x 28 in two train files, one of them gzipped, and one test file."""
    for name, sizes in (
        ("train/0.json", {"w0": 9, "w2": 14}),
        ("train/1.json.gz", {"w1": 5, "w3": 7}),
        ("test/all.json", {"w0": 2, "w1": 1, "w2": 3, "w3": 2}),
    ):
        clients = {}
        for user, size in sizes.items():
            x, y = _pictures(rng, size, 28, 5)
            clients[user] = (x.reshape(size, -1) / 255).tolist(), y.tolist()
        _write_leaf(folder / name, clients)
    return folder


def _leaf_vectors(folder: Path, rng: np.random.Generator) -> Path:
    """Write vectors of users of whom some are for training and others for testing."""
    for part, sizes in (("train", (9, 5, 14, 7)), ("test", (6, 8))):
        clients = {}
        for k, size in enumerate(sizes):
            x, y = _vectors(rng, size)
            clients[f"{part}{k}"] = x.tolist(), y.tolist()
        _write_leaf(folder / part / "all.json", clients)
    return folder


def _leaf_text(folder: Path, rng: np.random.Generator) -> Path:
    """Write windows of 80 characters; those of one user in no order."""
    for part, lengths in (("train", (140, 120, 160)), ("test", (95, 90, 100))):
        clients = {}
        for k, length in enumerate(lengths):
            text, starts = _speech(rng, length), np.arange(length - 80)
            starts = rng.permutation(starts) if k == 1 else starts
            x = [text[i : i + 80] for i in starts]
            clients[f"PLAY_ROLE{k}"] = x, [text[i + 80] for i in starts]
        _write_leaf(folder / part / "all.json", clients)
    return folder


def _idx(folder: Path, rng: np.random.Generator) -> Path:
    """Write MNIST's four files, with pictures of 6 x 6 in 5 classes."""
    folder.mkdir()
    for part, rows in (("train", 130), ("t10k", 70)):
        x, y = _pictures(rng, rows, 6, 5)
        for name, array in ((f"{part}-images-idx3-ubyte", x), (f"{part}-labels-idx1-ubyte", y)):
            head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / name).write_bytes(head + array.astype(np.uint8).tobytes())
    return folder


def _gutenberg(path: Path, rng: np.random.Generator) -> Path:
    """Write a title page and two plays; one role is too short to have test samples."""
    lines = ["", "The Complete Works of William Shakespeare", "", "by William Shakespeare", ""]
    plays = {
        "KING JOHN": {"JOHN": 14, "PAGE": 4, "FIRST LORD": 12},
        "TWELFTH": {"SIR": 11, "O": 12},
    }
    for title, roles in plays.items():
        lines += ["", "", title, "", "", "by William Shakespeare", ""]
        for role, count in roles.items():
            lines += [f"  {role}. {_speech(rng, 30)}", "Enter all"]
            lines += [f"    {_speech(rng, 90)}" for _ in range(count)]
    path.write_text("\n".join([*lines, ""]))
    return path


def _speech(rng: np.random.Generator, length: int) -> str:
    words = " ".join(_WORDS[i] for i in rng.integers(0, len(_WORDS), length))
    return words[:length].strip().ljust(length, ".")
