"""Fingerprints: different content never counts as one, equal content does in every process."""

import collections
import copy
import dataclasses
import enum
import functools
import importlib
import itertools
import os
import subprocess
import sys
import threading
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.core.identity import UnidentifiedError, fingerprint


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Schedule:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, t):
        return self.rate * t


class AList(list):
    pass


class ADict(dict):
    pass


class ATuple(tuple):
    pass


class AText(str):
    pass


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Choice(enum.Enum):
    SLOW = 0.1
    FAST = 0.2


def with_attribute(value, rate):
    value.rate = rate
    return value


def a_class(rate):
    class Made:
        _rate = rate

    return Made


def a_derived_class(rate):
    class Base:
        rate_of_it = rate

    class Made(Base):
        pass

    return Made()


def a_class_with_a_property(rate):
    class Made:
        @property
        def rate(self):
            return rate

    return Made


def a_data_class(rate):
    @dataclasses.dataclass
    class Made:
        number: int = 1

    return with_attribute(Made(), rate)


def a_large_frame(rate):
    frame = pd.DataFrame(np.zeros((1000, 50)))
    frame.iloc[500, 25] = rate
    return frame


def objects(rate):
    array = np.full(2000, None)
    array[1000] = {"rate": rate}
    return array


def structured(rate):
    array = np.empty(3, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    array["a"], array["b"] = 1, rate
    return array


def cyclic(rate):
    made = Schedule(rate)
    made.itself, made.items = made, [made]
    return made


def keyword_only(rate):
    return (lambda t, k=1: t * k) if rate == 0.1 else (lambda t, *, k=1: t * k)


def an_array_of_a_class(rate):
    class Made(np.ndarray):
        pass

    return with_attribute(np.zeros(3).view(Made), rate)


def a_class_of_a_class(rate):
    class Kind(type):
        def __call__(cls):
            return rate

    class Made(metaclass=Kind):
        pass

    return Made


def of_a_module_without_a_file(rate):
    sys.modules["made_here"] = module = types.ModuleType("made_here")
    exec(f"def schedule(t): return {rate} * t", vars(module))
    return module.schedule


def a_net(rate):
    class Net(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    return Net(int(10 * rate))


MAKERS = {
    "an object with slots": Slotted,
    "a spline": lambda a: CubicSpline([0, 1, 2], [a, 2, 3]),
    "a large DataFrame": a_large_frame,
    "a series of texts": lambda a: pd.Series([str(a)] * 100),
    "a memoryview": lambda a: memoryview(np.full(3, a).tobytes()),
    "an attribute of a list": lambda a: with_attribute(AList([1]), a),
    "an attribute of a dict": lambda a: with_attribute(ADict(k=1), a),
    "an attribute of a tuple": lambda a: with_attribute(ATuple([1]), a),
    "an attribute of a text": lambda a: with_attribute(AText("k"), a),
    "an attribute of a named tuple": lambda a: with_attribute(Pair(1, 2), a),
    "an attribute of a function": lambda a: with_attribute(lambda t: t, a),
    "an attribute of a data class": a_data_class,
    "a default factory": lambda a: collections.defaultdict(functools.partial(float, a)),
    "an iterator": lambda a: itertools.cycle([a, 1]),
    "an object that is called": Schedule,
    "a bound method": lambda a: Schedule(a).__call__,
    "a method of a list": lambda a: [a].append,
    "a partial": lambda a: functools.partial(Schedule(a), 1),
    "a default": lambda a: lambda t, rate=a: rate * t,
    "a keyword": keyword_only,
    "a closure over an array": lambda a: (lambda rates: lambda t: rates[t])(np.full(9, a)),
    "a compiled function": lambda a: jax.jit(lambda t: a * t),
    "a cached function": lambda a: functools.lru_cache(lambda t: a * t),
    "a vectorized function": lambda a: np.vectorize(lambda t: a * t),
    "a class": a_class,
    "a class behind a class": a_derived_class,
    "a property": a_class_with_a_property,
    "a choice": Choice,
    "an array of objects": objects,
    "a structured array": structured,
    "a masked array": lambda a: np.ma.masked_array([1.0, 2.0], mask=[a == 0.1, False]),
    "an array of JAX": lambda a: jnp.full(3, a),
    "a generator of numbers": lambda a: np.random.default_rng(int(10 * a)),
    "sets": lambda a: {("x", a), frozenset(["y", a])},
    "a deque": lambda a: collections.deque([a]),
    "a cycle": cyclic,
    "a net": a_net,
    "an attribute of an array": an_array_of_a_class,
    "a class of a class": a_class_of_a_class,
    "a function of a module without a file": of_a_module_without_a_file,
    "lists in lists": lambda a: [[1], 2] if a == 0.1 else [[1, 2]],
    "empty lists in lists": lambda a: [[], [1]] if a == 0.1 else [[[], 1]],
    "tuples in a default": lambda a: (
        (lambda r=((1, 2), 3): r) if a == 0.1 else (lambda r=((1,), 2, 3): r)
    ),
    "lists in dictionaries": lambda a: (
        {"k": [[1], 2], "m": 3} if a == 0.1 else {"k": [[1, 2]], "m": 3}
    ),
    "lists in objects": lambda a: Schedule([[a], 2] if a == 0.1 else [[0.1, 2]]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_content_decides(make):
    assert fingerprint(make(0.1)) == fingerprint(make(0.1)) != fingerprint(make(0.2))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
CONTENT = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Schedule, inner)
        | st.builds(Slotted, inner)
    ),
    max_leaves=6,
)


def spelled(value):
    """Return a text that tells all values of ``CONTENT`` apart."""
    if isinstance(value, Schedule | Slotted):
        return f"{type(value).__name__}({spelled(value.rate)})"
    if isinstance(value, dict):
        return f"dict({[(k, spelled(v)) for k, v in value.items()]})"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({[spelled(item) for item in value]})"
    return f"{type(value).__name__} {value!r}"


@given(CONTENT, CONTENT)
def test_a_copy_is_equal_and_other_content_is_not(one, other):
    assert fingerprint(one) == fingerprint(copy.deepcopy(one))
    if spelled(one) != spelled(other):
        assert fingerprint(one) != fingerprint(other)


def test_fingerprints_do_not_depend_on_the_seed_of_hashes():
    code = (
        "from tests.core.test_identity import MAKERS, fingerprint\n"
        "for make in MAKERS.values(): print(fingerprint(make(0.1)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().split()) == len(MAKERS)


def test_use_does_not_change_what_an_object_is():
    net, schedule = a_net(0.3), jax.jit(lambda t: 2 * t)
    before = fingerprint(net), fingerprint(schedule)
    net.init(jax.random.key(0), jnp.ones((1, 4)))
    schedule(1.0)
    assert (fingerprint(net), fingerprint(schedule)) == before


def test_what_a_function_takes_from_a_module_of_the_users_counts():
    mine = types.ModuleType("mine")
    mine.__file__, mine.RATE, mine.UNUSED = "mine.py", 0.1, 1

    def schedule(t):
        return mine.RATE * t

    before = fingerprint(schedule)
    mine.UNUSED = 2
    assert fingerprint(schedule) == before
    mine.RATE = 0.2
    assert fingerprint(schedule) != before


@pytest.mark.parametrize("code", ["from mine import RATE as rate", "import mine; rate = mine.RATE"])
def test_what_a_function_imports_when_it_is_called_counts(tmp_path, monkeypatch, code):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for rate in (0.1, 0.2, 0.1):
        (tmp_path / "mine.py").write_text(f"RATE = {rate}\nUNUSED = {len(found)}")
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        scope = {}
        exec(f"def schedule(t):\n    {code}\n    return rate * t", scope)
        found.append(fingerprint(scope["schedule"]))
    assert found[0] == found[2] != found[1]


def a_generator():
    yield 0.1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (a_generator(), "generator"),
        (threading.Lock(), "_thread.lock"),
        (np.frompyfunc(lambda t: 2 * t, 1, 1), "numpy.ufunc"),
        (Schedule({}.keys()), "dict_keys"),
        (functools.reduce(lambda inner, _: [inner], range(3000), 0), "list"),
    ],
)
def test_what_has_no_content_to_compare_is_refused_unless_it_is_named(value, kind):
    with pytest.raises(UnidentifiedError, match=f"it holds a {kind}, .* fedmom.named"):
        fingerprint(value)
    named = fedmom.named(value, f"its-{kind.lower()}")
    assert named is value
    assert fingerprint([value]) != fingerprint([fedmom.named(value, "other")])


def test_equal_names_count_as_one_but_not_two_objects_in_the_same_process():
    one, other = Slotted(1), Slotted(2)
    fedmom.named(one, "mine")
    before = fingerprint(one)
    fedmom.named(other, "mine")
    assert fingerprint(other) == before
    with pytest.raises(FedMomError, match="Two objects are named 'mine'"):
        fingerprint(one)


@pytest.mark.parametrize("name", ["", "9", "a b", "a@b", "a:b", "a" * 61, "ä"])
def test_a_name_that_cannot_stand_in_settings_is_refused(name):
    with pytest.raises(FedMomError, match="named: name is"):
        fedmom.named(Slotted(1), name)


@pytest.mark.parametrize("value", [0.1, "fedavg", None])
def test_numbers_and_texts_need_no_name(value):
    with pytest.raises(FedMomError, match="need no name"):
        fedmom.named(value, "mine")


def test_a_field_that_was_added_later_changes_no_fingerprint_where_it_is_the_default():
    """The digits are those of the version before ``accumulate``: its folders find their objects."""
    before = "bfa69c28c9f5527a98ce0c16df3a4a8c5a09954e9841d8f24bca2da2ddd86b8c"
    assert fingerprint(fedmom.LocalWork(lr=0.1, steps=10)) == before
    assert fingerprint(fedmom.LocalWork(lr=0.1, steps=10, accumulate=2)) != before
