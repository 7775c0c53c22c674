"""The collector is off inside, and as it was outside."""

import gc
import threading

import pytest

from fedmom.core.garbage import collector_paused


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collects(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_it_is_as_it_was_after_nested_pauses(collects):
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == collects


def test_it_is_as_it_was_after_an_error(collects):
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled() == collects


def test_the_last_thread_to_leave_turns_it_on(collects):
    inside, leave = threading.Event(), threading.Event()

    def pause():
        with collector_paused():
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=pause)
    with collector_paused():
        other.start()
        assert inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled() == collects
