"""Bytes changed at random, and what must hold whatever they have become."""

import contextlib
import shutil
import signal
from pathlib import Path

import numpy as np

from fedmom.core.errors import FedMomError

# Longer is a hang: at work, or waiting for something. A busy machine may take its time.
SECONDS_AT_WORK, SECONDS = 20, 300
# What text formats, numbers and headers trip over.
TOKENS = [
    *(b"", b"{", b"}", b"[", b"]", b",", b":", b'"', b"'", b"\\", b"=", b"\n", b"\0", b"\xff"),
    *(
        b"-",
        b"0",
        b"9",
        b"1e999",
        b"nan",
        b"inf",
        b"null",
        b"true",
        b"-1",
        b"0x",
        b"[[",
        b"\xe2\x82",
    ),
    *(
        b"99999999999999999999",
        b"4294967296",
        b"2147483648",
        b"1e-400",
        b'"\\ud800"',
        b"|O",
        b"<f8",
    ),
]


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with one to three changes."""
    for _ in range(rng.integers(1, 4)):
        content = CHANGES[rng.integers(len(CHANGES))](content, rng)
    return content


def _somewhere(content: bytes, rng: np.random.Generator) -> int:
    """A place; headers are short and matter most, so every other one is near an end."""
    place = int(rng.integers(0, len(content) + 1))
    near = int(rng.integers(0, min(200, len(content)) + 1))
    return [place, near, len(content) - near][rng.integers(3)]


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    if not content:
        return b"\0"
    place = min(_somewhere(content, rng), len(content) - 1)
    return content[:place] + bytes([content[place] ^ (1 << rng.integers(8))]) + content[place + 1 :]


def _insert(content: bytes, rng: np.random.Generator) -> bytes:
    place = _somewhere(content, rng)
    return content[:place] + TOKENS[rng.integers(len(TOKENS))] + content[place:]


def _replace(content: bytes, rng: np.random.Generator) -> bytes:
    place, length = _somewhere(content, rng), int(rng.integers(1, 9))
    token = TOKENS[rng.integers(len(TOKENS))]
    return content[:place] + token + content[place + length :]


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: _somewhere(content, rng)]


def _remove(content: bytes, rng: np.random.Generator) -> bytes:
    place, length = _somewhere(content, rng), int(rng.integers(1, 40))
    return content[:place] + content[place + length :]


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
    place, length = _somewhere(content, rng), int(rng.integers(1, 200))
    return content[:place] + content[place : place + length] + content[place:]


def _noise(content: bytes, rng: np.random.Generator) -> bytes:
    place, length = _somewhere(content, rng), int(rng.integers(1, 40))
    return content[:place] + rng.bytes(length) + content[place + length :]


CHANGES = (_flip, _flip, _insert, _replace, _replace, _cut, _remove, _repeat, _noise)


def spoiled(original: Path, copy: Path, rng: np.random.Generator) -> Path:
    """Copy a file or folder and change one file of it; return which."""
    if original.is_dir():
        shutil.copytree(original, copy)
        files = sorted(file for file in copy.rglob("*") if file.is_file())
    else:
        shutil.copy(original, copy)
        files = [copy]
    file = files[rng.integers(len(files))]
    if len(files) > 1 and rng.random() < 0.05:
        file.unlink()
    else:
        file.write_bytes(mutated(file.read_bytes(), rng))
    return file


def sentence(call, *args):
    """Call; return the sentence of a refusal, or None. Anything else that is raised passes on."""
    try:
        with _in_time():
            call(*args)
    except FedMomError as error:
        text = str(error)
        assert text.strip(), "a refusal says why"
        assert "Traceback" not in text
        assert len(text) < 2000, text
        return text
    return None


@contextlib.contextmanager
def _in_time():
    def late(number, _frame):
        limit = SECONDS if number == signal.SIGALRM else f"{SECONDS_AT_WORK} of the processor's"
        raise TimeoutError(f"it took more than {limit} seconds")

    before = {n: signal.signal(n, late) for n in (signal.SIGALRM, signal.SIGPROF)}
    signal.alarm(SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_AT_WORK)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, but for locks."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".lock"
    }
