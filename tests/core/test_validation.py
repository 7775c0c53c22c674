"""Numbers from users: their ranges, and what the machine has room for."""

import math
from typing import Annotated

import pytest

from fedmom.core import validation
from fedmom.core.errors import FedMomError
from fedmom.core.registry import options
from fedmom.core.validation import MOST, Between, check_memory, check_number, check_parameters


def thing(
    *,
    count: int = 1,
    rate: float = 1.0,
    maybe: int | None = None,
    few: Annotated[int, Between(1, 9)] = 2,
    any_rate: Annotated[float, Between(0, math.inf)] = 1.0,
    flag: bool = True,
):
    return count, rate, maybe, few, any_rate, flag


@pytest.mark.parametrize("text", ["9" * 30, str(MOST + 1), str(-MOST - 1)])
@pytest.mark.parametrize("key", ["count", "maybe"])
def test_whole_numbers_have_32_bits(key, text):
    with pytest.raises(FedMomError, match=f"{key}={text} is not between -{MOST:,} and {MOST:,}"):
        options(thing, f"thing:{key}={text}")


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e999"])
def test_numbers_are_finite(text):
    with pytest.raises(FedMomError, match=f"rate={text} is not a finite number"):
        options(thing, f"thing:rate={text}")


def test_an_option_may_have_a_range_of_its_own():
    assert options(thing, "thing:few=9,any_rate=inf") == {"few": 9, "any_rate": math.inf}
    for text in ("few=0", "few=10", "any_rate=-1", "any_rate=nan"):
        with pytest.raises(FedMomError, match=f"{text} is not between"):
            options(thing, f"thing:{text}")
    with pytest.raises(FedMomError, match="few='x' is not of type int"):
        options(thing, "thing:few=x")


def test_numbers_of_thousands_of_digits_are_refused():
    with pytest.raises(FedMomError, match="is not of type int"):
        options(thing, f"thing:count={'9' * 5000}")


def test_what_is_no_number_passes():
    for value in (None, "text", True):
        check_number("x", value)
    assert options(thing, f"thing:count={MOST},flag=no")["count"] == MOST


def test_what_the_machine_has_no_room_for_is_refused(monkeypatch):
    monkeypatch.setattr(validation, "machine_memory", lambda: 10**9)
    check_memory("this", 10**9, "Take less.")
    with pytest.raises(FedMomError, match=r"this needs at least 2.0 GB, .* has 1.0 GB. Take less."):
        check_memory("this", 2 * 10**9, "Take less.")
    with pytest.raises(FedMomError, match="net with 100,000,000 parameters needs"):
        check_parameters("net", 10**8)
    monkeypatch.setattr(validation, "machine_memory", lambda: None)  # the system does not tell
    check_memory("this", 10**30, "Take less.")


def test_this_machine_has_memory():
    assert validation.machine_memory() > 10**8
