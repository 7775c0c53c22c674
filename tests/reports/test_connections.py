"""`fedmom watch` under connections that never ask: few threads, and the page stays there."""

import http.client
import math
import socket
import threading
import time

import pytest

from fedmom.core.errors import FedMomError
from fedmom.reports import live


def view():
    return live.View("title", "about", [], "running", "text")


@pytest.fixture(name="server")
def running_server():
    with live.open_server(view, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path="/data.json", seconds=20):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw(server, text):
    """Send a request as it is; return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(text.encode())
        return connection.makefile("rb").readline().decode()


def half_open(server, count, text=b"GET / HT"):
    sockets = []
    for _ in range(count):
        sockets.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=20))
        sockets[-1].sendall(text)
    return sockets


def until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_hundred_half_open_connections_hold_few_threads(server):
    before = threading.active_count()
    sockets = half_open(server, 200)
    try:
        assert ask(server)[0] == 200
        until(lambda: threading.active_count() - before <= live.MOST + 1)
        assert len(server.connections) <= live.MOST
    finally:
        for each in sockets:
            each.close()


def goes_on(slow):
    """Send one more letter, and tell whether somebody takes it."""
    try:
        slow.sendall(b"x")
    except OSError:
        return False
    return True


def test_who_sends_slowly_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(live, "SECONDS_TO_ASK", 0.2)
    (slow,) = half_open(server, 1)
    with slow:
        until(lambda: not goes_on(slow), seconds=15)
    until(lambda: len(server.connections) == 0)


def test_an_answer_may_take_its_time(server, monkeypatch):
    monkeypatch.setattr(live, "SECONDS_TO_ASK", 0.05)
    monkeypatch.setattr(server, "_look", lambda: time.sleep(0.5) or view())
    assert ask(server)[0] == 200


def test_where_all_are_being_answered_more_are_turned_away():
    pairs = [socket.socketpair() for _ in range(live.MOST + 1)]
    try:
        open_ = live.Connections()
        for one, _ in pairs[:-1]:
            assert open_.admit(one)
            open_.has_asked(one)
        assert not open_.admit(pairs[-1][0])
        open_.closed(pairs[0][0])
        assert open_.admit(pairs[-1][0])
    finally:
        for pair in pairs:
            for each in pair:
                each.close()


LARGE = bytes(2**25)  # more than systems take before it is read


def test_those_who_do_not_read_keep_nobody_out(server, monkeypatch):
    """More than there is room for ask for the page, and take none of it."""
    monkeypatch.setattr(server, "page", lambda: LARGE)
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    sockets = half_open(server, live.MOST + 8, request)
    try:
        until(lambda: len(server.connections) == live.MOST)
        until(lambda: not any(map(math.isinf, server.connections._deadlines.values())))
        began = time.monotonic()
        for _ in range(3):
            assert ask(server)[0] == 200
        assert time.monotonic() - began < 5
    finally:
        for each in sockets:
            each.close()


def test_who_does_not_read_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(live, "SECONDS_TO_TAKE", 0.2)
    monkeypatch.setattr(server, "page", lambda: LARGE)
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    (silent,) = half_open(server, 1, request)
    with silent:
        until(lambda: len(server.connections) == 1)
        until(lambda: len(server.connections) == 0, seconds=15)


def test_two_hosts_are_refused(server):
    own = f"127.0.0.1:{server.server_port}"
    assert " 200 " in raw(server, f"GET / HTTP/1.1\r\nHost: {own}\r\n\r\n")
    for second in ("evil.example", own):
        request = f"GET / HTTP/1.1\r\nHost: {own}\r\nHost: {second}\r\n\r\n"
        assert " 403 " in raw(server, request)
    assert " 403 " in raw(server, "GET / HTTP/1.1\r\n\r\n")


def test_the_page_of_a_run_that_cannot_be_read_is_no_traceback(server, monkeypatch, capfd):
    def lost():
        raise FedMomError("gone")

    monkeypatch.setattr(server, "_look", lost)
    assert ask(server, "/")[0] == 503
    (gone,) = half_open(server, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    gone.close()
    until(lambda: len(server.connections) == 0)
    assert capfd.readouterr().err == ""


def test_many_can_wait_at_the_door():
    assert live.PageServer.request_queue_size >= 100
