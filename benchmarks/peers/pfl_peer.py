"""pfl-research: its simulated backend on PyTorch, a process for each core."""

import os
import socket
import subprocess
import sys

import work as w

PROCESSES = os.cpu_count() or 1


def join_processes():
    """Start the other processes, and join their group as torchrun would have us do it."""
    if "RANK" in os.environ:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(
        TORCHELASTIC_RUN_ID="benchmark",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WORLD_SIZE=str(PROCESSES),
        LOCAL_WORLD_SIZE=str(PROCESSES),
        OMP_NUM_THREADS="1",
    )
    others = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(1, PROCESSES)
    ]
    os.environ.update(RANK="0", LOCAL_RANK="0")
    return others


def main():
    options = w.arguments()
    others = join_processes()
    import pfl_run  # the group is joined on import

    pfl_run.run(options)
    for other in others:
        other.wait()


if __name__ == "__main__":
    main()
