"""The whole path: train in one place, fine-tune low-rank changes on clients, merge, export."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedmom
from fedmom.core.prng import init_key
from fedmom.data.federated import Split

MODEL = "char_gpt:layers=2,width=32,heads=2"


def halves():
    """Half of the roles as one client, whose samples lie at a table of positions; the others."""
    data = fedmom.load_data("shakespeare:roles=8,samples=16000")
    first, others = np.arange(4), np.arange(4, 8)
    positions = [data.split(name)[0:2] for name in ("train", "test")]
    tables = [Split(*split).of(first).positions() for split in positions]
    sizes = [len(table) for table in tables]
    central = replace(
        data,
        users=("all",),
        arrays={**data.arrays, "at": np.concatenate(tables).astype(np.int32)},
        train=Split(np.array([0]), np.array(sizes[:1])),
        test=Split(np.array(sizes[:1]), np.array(sizes[1:])),
    )
    some = [Split(*split).of(others) for split in positions]
    clients = replace(data, users=[data.users[k] for k in others], train=some[0], test=some[1])
    return central, clients


@pytest.mark.thorough
def test_trained_in_one_place_and_fine_tuned_on_clients(tmp_path):
    central, clients = halves()
    how = {"solver": "adamw", "batch_size": 16, "eval_samples": 500, "progress": False}
    before = fedmom.run(
        central,
        MODEL,
        "fedavg",
        weighting="cohort",
        clients_per_round=1,
        local_steps=100,
        rounds=2,
        eval_every=2,
        lr=0.005,
        out=tmp_path / "first",
        **how,
    )
    losses = [row["loss"] for row in before.result.evals if row["split"] == "test"]
    assert losses[-1] < losses[0] - 1

    file = before.export() / "model.safetensors"
    tuned = fedmom.run(
        clients,
        MODEL,
        "diloco:steps=40,batch_size=16,warmup=10",
        adapt=f"pretrained:file={file}+lora:rank=4,targets=blocks/*",
        clients_per_round=4,
        rounds=3,
        eval_every=3,
        lr=0.01,
        eval_samples=500,
        out=tmp_path / "tuned",
        progress=False,
    )
    start, end = (row["loss"] for row in tuned.result.evals if row["split"] == "test")
    assert start < losses[0] - 0.5  # what was learned elsewhere helps here
    assert end < start - 0.02
    whole = sum(leaf.size for leaf in jax.tree.leaves(tuned.params))
    assert tuned.rounds["bytes_up"].max() < 4 * 4 * whole / 2  # of four clients

    exported = tuned.export(onnx_batch=2)
    plain = fedmom.build_model(MODEL, clients.features)
    again = fedmom.pretrained(plain, file=str(exported / "model.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, again.init(init_key(3)), tuned.params)
    onnx = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).integers(0, 80, (2, 80)).astype(np.int32)
    session = onnx.InferenceSession(exported / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, plain.apply(tuned.params, x, None), rtol=1e-3, atol=1e-4)
