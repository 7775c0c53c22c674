"""Starts at the same time in one folder: one runs, and the others are told so in a sentence."""

import subprocess
import sys
import threading

import pytest

import fedmom

AT_ONCE = 4
TASK = {"clients_per_round": 2, "lr": 0.01, "progress": False, "rounds": 3}
CHILD = """
import sys, fedmom
from fedmom.experiments import build
from fedmom import data
data.load("synthetic:clients=4")
print("ready", flush=True)
sys.stdin.readline()
try:
    run = fedmom.run("synthetic:clients=4", out=sys.argv[1], clients_per_round=2, lr=0.01,
                     rounds=3, progress=False, overwrite=len(sys.argv) > 2)
    print("ran", run.status)
except fedmom.FedMomError as error:
    print("refused", error)
"""
TOLD = ("already holds", "Another process is at work", "is not empty")


def judge(folder, ran, refused):
    assert len(ran) == 1, (ran, refused)
    assert len(refused) == AT_ONCE - 1
    for text in refused:
        assert any(part in text for part in TOLD), text
    found = fedmom.load(folder)
    runs = found.values() if isinstance(found, fedmom.Runs) else [found]
    assert [run.status for run in runs] == ["finished"] * len(runs)


def in_threads(start):
    ran, refused, ready = [], [], threading.Barrier(AT_ONCE)

    def one():
        ready.wait()
        try:
            ran.append(start())
        except fedmom.FedMomError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ran, refused


STARTS = {
    "run": lambda folder: fedmom.run("synthetic:clients=4", out=folder, **TASK),
    "compare": lambda folder: fedmom.compare(
        ["fedavg", "fedmom"], data="synthetic:clients=4", out=folder, **TASK
    ),
    "sweep": lambda folder: fedmom.sweep(
        {"momentum": [0.1, 0.2]}, data="synthetic:clients=4", out=folder, **TASK
    ),
}


@pytest.mark.parametrize("call", STARTS)
def test_of_threads_that_start_in_one_folder_one_runs(tmp_path, call):
    for turn in range(2):
        folder = tmp_path / f"{turn}"
        judge(folder, *in_threads(lambda folder=folder: STARTS[call](folder)))


def test_the_folder_of_a_run_that_is_refused_is_free_again(tmp_path):
    _, refused = in_threads(
        lambda: fedmom.run(
            "synthetic:clients=4", out=tmp_path / "r", runtime="local:workers=0", **TASK
        )
    )
    assert len(refused) == AT_ONCE
    assert not (tmp_path / "r").exists()
    assert STARTS["run"](tmp_path / "r").status == "finished"


@pytest.mark.thorough
@pytest.mark.parametrize("overwrite", [False, True])
def test_of_processes_that_start_in_one_folder_one_runs(tmp_path, overwrite):
    for turn in range(3):
        folder = tmp_path / f"{turn}"
        if overwrite:
            STARTS["run"](folder)
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(folder), *["overwrite"] * overwrite],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(AT_ONCE)
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * AT_ONCE
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [child.communicate() for child in children]
        ends = [out or err for out, err in said]
        if overwrite:  # one may begin when another has ended
            assert all(end.startswith(("ran finished", "refused")) for end in ends), ends
            assert fedmom.load(folder).status == "finished"
        else:
            judge(
                folder,
                [end for end in ends if end.startswith("ran finished")],
                [end for end in ends if end.startswith("refused")],
            )
