"""Mutated LEAF files: each loads with the numbers its JSON has, or gives one clear error."""

import copy
import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data.sources.leaf import pack_leaf
from fedmom.data.store.reader import load_store
from tests.data.sources.test_leaf import REAL, assert_same, image, plain, shard, speech, windows

PARTS = ("train", "test")
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
# What may stand in the place of any value: other types, other sizes, what JSON is not.
ODD = [
    None, True, False, 0, 1, -1, 7.0, 0.5, 61, 62, 79, 2**70, 10**400, 1e39, float("nan"),
    float("inf"), "", "a", "1", "a" * 80, "\ud800", "é", [], [[]], [0], {}, {"x": [], "y": []},
]  # fmt: skip
# What may be put between any two bytes: JSON's own signs, digits, and no UTF-8.
TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"-", b"e9", b"1", b"\xff", b"\0"]
TOKENS += [b"NaN,", b"null,", b'"x": 1, ', b'"\\ud800", ', b" ", b"\n"]


def small(name: str) -> dict[str, dict[str, Any]]:
    """Return a few samples of two users of the real files (or generated, where they are not)."""
    if not (REAL / name).is_dir():
        made = {"femnist": image(0, 3), "shakespeare": windows(speech(0, 83))}[name]
        return {part: shard({"ann": made, "bob": made}) for part in PARTS}
    sizes = {"train": 3, "test": 2}
    clients = {part: list(plain(REAL / name, part).items())[-2:] for part in PARTS}
    return {
        part: shard({user: (x[: sizes[part]], y[: sizes[part]]) for user, (x, y) in clients[part]})
        for part in PARTS
    }


BASES = {name: small(name) for name in ("femnist", "shakespeare")}
kinds = pytest.mark.parametrize("kind", BASES)


def check(files: dict[str, bytes], suffix: str = ".json") -> bool:
    """Load the files; tell whether they loaded, which they may only with the right numbers."""
    with tempfile.TemporaryDirectory() as base:
        folder, store = Path(base) / "leaf", Path(base) / "stores" / "store"
        for part, content in files.items():
            (folder / part).mkdir(parents=True)
            (folder / part / f"file{suffix}").write_bytes(content)
        message = refusal(folder, store)
        if message is not None:
            assert "\n" not in message
            assert f"file{suffix}" in message
            assert not store.parent.exists() or not list(store.parent.iterdir())
            return False
        data = load_store(store)
        assert_same(data, folder)
        for part, content in files.items():
            assert_consistent(json.loads(unpacked(content)), part, data)
        return True


def refusal(folder: Path, store: Path) -> str | None:
    try:
        pack_leaf(folder, store)
    except FedMomError as error:
        return str(error)
    return None


def assert_consistent(content: Any, part: str, data: Any) -> None:
    """What was loaded says of itself what it has."""
    lengths = [len(content["user_data"][user]["y"]) for user in content["users"]]
    uncounted = 79 if (data.features.kind, part) == ("text", "test") else 0
    for said, length in zip(content["num_samples"], lengths, strict=True):
        assert said in (length, length + uncounted)
    assert len(set(content["users"])) == len(content["users"]) == len(content["user_data"])
    assert set(content["users"]) <= set(data.users)


def unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def encoded(kind: str) -> dict[str, bytes]:
    return {part: json.dumps(content).encode() for part, content in BASES[kind].items()}


def positions(content: bytes) -> st.SearchStrategy[int]:
    """Return places in a file, every other time at a sign: most bytes are pixels or letters."""
    signs = [m.start() for m in re.finditer(rb'[\[\]{}":]', content)]
    return st.integers(0, len(content) - 1) | st.sampled_from(signs)


@kinds
def test_unchanged_files_load(kind):
    assert check(encoded(kind))
    assert check({p: gzip.compress(c) for p, c in encoded(kind).items()}, ".json.gz")


@kinds
@FUZZ
@given(data=st.data())
def test_changed_bytes_load_right_or_are_refused(kind, data):
    files = encoded(kind)
    part = data.draw(st.sampled_from(PARTS))
    content = files[part]
    at, length = data.draw(positions(content)), data.draw(st.integers(1, 200))
    change = data.draw(st.sampled_from(["flip", "cut", "delete", "repeat", "insert"]))
    piece = content[at : at + length]
    files[part] = {
        "flip": content[:at] + bytes([content[at] ^ (1 << length % 8)]) + content[at + 1 :],
        "cut": content[:at],
        "delete": content[:at] + content[at + length :],
        "repeat": content[: at + length] + piece + content[at + length :],
        "insert": content[:at] + TOKENS[length % len(TOKENS)] + content[at:],
    }[change]
    check(files)


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Return the way to every value inside, but of an image only to two of its pixels."""
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value))) if len(value) < 700 else [0, 400]
    else:
        keys = []
    return [(key, *rest) for key in keys for rest in [(), *paths(value[key])]]


def disguises(value: Any) -> list[Any]:
    """Return values that look like this one and are not it."""
    close: list[Any] = [str(value), [value], {"x": value}, bool(value)]
    if isinstance(value, int | float):
        close += [float(value), value + 1, -value, value / 2, value + 1e-3, str(float(value))]
    return close


@kinds
@settings(FUZZ, max_examples=300)
@given(data=st.data())
def test_changed_values_load_right_or_are_refused(kind, data):
    contents = copy.deepcopy(BASES[kind])
    *way, key = data.draw(st.sampled_from([p for p in paths(contents) if len(p) > 1]))
    holder: Any = contents
    for step in way:
        holder = holder[step]
    change = data.draw(st.sampled_from(["replace", "disguise", "delete", "repeat", "move"]))
    if change == "replace":
        holder[key] = data.draw(st.sampled_from(ODD))
    elif change == "disguise":
        holder[key] = data.draw(st.sampled_from(disguises(holder[key])))
    elif change == "delete":
        del holder[key]
    elif isinstance(holder, list):
        holder.append(holder[key] if change == "repeat" else holder.pop(key))
    else:
        holder["new" if change == "repeat" else "x"] = holder[key]
    check({part: json.dumps(content).encode() for part, content in contents.items()})


@kinds
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_renamed_user_is_refused(kind, part, number):
    files = encoded(kind)
    user = json.dumps(BASES[kind][part]["users"][number]).encode()
    files[part] = files[part].replace(user, b'"someone"')
    assert not check(files)  # in train or in test, it leaves a user in test only


@kinds
@FUZZ
@given(data=st.data())
def test_changed_bytes_of_gzip_load_right_or_are_refused(kind, data):
    files = {part: gzip.compress(c, 1, mtime=0) for part, c in encoded(kind).items()}
    part = data.draw(st.sampled_from(PARTS))
    content = files[part]
    at, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 8))
    flipped = content[:at] + bytes([content[at] ^ (1 << bit) % 256]) + content[at + 1 :]
    files[part] = content[:at] if bit == 8 else flipped
    check(files, ".json.gz")
