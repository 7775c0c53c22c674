"""Downloads against a real server on this machine, which can cut, change and refuse."""

import hashlib
import http.client
import re
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data import download as module
from fedmom.data.download import checksum, download

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """A file server with a list of accidents: how many bytes to send before each cut."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.files: dict[str, bytes] = {}  # by path, where it is not the one content
        self.etag: str | None = '"one"'
        self.modified: str | None = None
        self.ranges = True  # whether Range is understood
        self.if_range = True  # whether If-Range is
        self.length = True  # whether the length is told
        self.cuts: list[int] = []
        self.statuses: list[int] = []  # answers instead of the file
        self.location: str | None = None  # where the first request is sent on to
        self.at_cut = lambda: None
        self.log: list[str | None] = []  # the Range header of every request
        self.conditions: list[str | None] = []  # and its If-Range

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.zip"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        server = self.server
        server.log.append(self.headers["Range"])
        server.conditions.append(self.headers["If-Range"])
        if server.location:
            self.send_response(302)
            self.send_header("Location", server.location)
            self.end_headers()
            server.location = None
            return
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        first, content = self._first(), server.files.get(self.path, server.content)
        if first >= len(content):
            self.send_error(416)
            return
        self._head(first, len(content))
        body = content[first:]
        if server.cuts:
            self.wfile.write(body[: server.cuts.pop(0)])
            self.wfile.flush()
            server.at_cut()
            return  # the connection is closed before the body is whole
        self.wfile.write(body)

    def _first(self) -> int:
        server, asked = self.server, re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        same = self.headers["If-Range"] in (None, server.etag or server.modified)
        return int(asked[1]) if asked and server.ranges and (same or not server.if_range) else 0

    def _head(self, first: int, total: int) -> None:
        server = self.server
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{total - 1}/{total}")
        if server.length:
            self.send_header("Content-Length", str(total - first))
        for name, value in (("ETag", server.etag), ("Last-Modified", server.modified)):
            if value:
                self.send_header(name, value)
        self.end_headers()


@pytest.fixture(name="server")
def running_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running(monkeypatch) as server:
        yield server


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a server, with short waits between tries and no proxy before it."""
    monkeypatch.setattr(module, "WAITS", (0.001, 0.002, 0.003))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_file_is_fetched_into_a_new_folder_and_nothing_else_stays(server, tmp_path):
    target = tmp_path / "new" / "file.zip"
    assert download(server.url, target, sha256=SHA256.upper()) == target
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["file.zip"]
    assert server.log == [None]


def test_cut_connection_is_resumed_where_it_was_cut(server, tmp_path):
    server.cuts = [100_000]
    target = download(server.url, tmp_path / "file.zip", sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert server.log == [None, "bytes=100000-"]
    assert server.conditions == [None, '"one"']
    assert names(tmp_path) == ["file.zip"]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cuts=st.lists(st.integers(0, 100_000), max_size=3),
    ranges=st.booleans(),
    etag=st.sampled_from(['"one"', 'W/"weak"', None]),
    modified=st.sampled_from(["Sun, 15 Nov 2015 00:00:00 GMT", None]),
)
def test_any_cuts_on_any_server_give_the_same_bytes(
    server, tmp_path_factory, cuts, ranges, etag, modified
):
    server.cuts, server.ranges, server.etag, server.modified = cuts, ranges, etag, modified
    target = download(server.url, tmp_path_factory.mktemp("any") / "file.zip")
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["file.zip"]


def test_last_modified_serves_where_there_is_no_etag(server, tmp_path):
    server.etag, server.modified, server.cuts = None, "Sun, 15 Nov 2015 00:00:00 GMT", [5]
    download(server.url, tmp_path / "file.zip")
    assert server.log == [None, "bytes=5-"]


@pytest.mark.parametrize("etag", ['W/"weak"', None])
def test_without_a_strong_name_for_the_version_nothing_is_resumed(server, tmp_path, etag):
    server.etag, server.cuts = etag, [5]
    download(server.url, tmp_path / "file.zip", sha256=SHA256)
    assert server.log == [None, None]


def test_server_without_ranges_sends_all_again(server, tmp_path):
    server.ranges, server.cuts = False, [100_000]
    target = download(server.url, tmp_path / "file.zip")
    assert target.read_bytes() == CONTENT
    assert server.log == [None, "bytes=100000-"]


@pytest.mark.parametrize("if_range", [True, False])
def test_file_that_changed_between_tries_is_never_glued_to_the_old_part(server, tmp_path, if_range):
    changed = CONTENT[::-1]

    def change() -> None:
        server.etag, server.content = '"two"', changed

    server.if_range, server.cuts, server.at_cut = if_range, [100_000], change
    assert download(server.url, tmp_path / "file.zip").read_bytes() == changed


def test_part_of_another_address_is_not_used(server, tmp_path):
    with pytest.raises(FedMomError):
        download(server.url + "?other", stuck(server, tmp_path))
    server.cuts, server.log = [], []
    assert download(server.url, tmp_path / "file.zip").read_bytes() == CONTENT
    assert server.log == [None]


def stuck(server: Server, folder: Path) -> Path:
    """Let the server send ten bytes once, and nothing in any later try."""
    server.cuts = [10, *[0] * 20]
    return folder / "file.zip"


def test_stuck_download_gives_up_after_the_tries_and_goes_on_in_the_next_call(server, tmp_path):
    target = stuck(server, tmp_path)
    with pytest.raises(FedMomError, match=r"cut after 10 of 300,000 bytes.*by hand") as error:
        download(server.url, target)
    assert server.url in str(error.value)
    assert str(target) in str(error.value)
    # The first try brought ten bytes; then come a try at once more and one for each wait.
    assert server.log == [None] + ["bytes=10-"] * (1 + len(module.WAITS))
    assert not target.exists()
    server.cuts, server.log = [], []
    assert download(server.url, target, sha256=SHA256).read_bytes() == CONTENT
    assert server.log == ["bytes=10-"]


def test_tries_are_not_used_up_while_the_file_grows(server, tmp_path):
    server.cuts = [20_000] * 12
    assert download(server.url, tmp_path / "file.zip").read_bytes() == CONTENT
    assert server.log[1:] == [f"bytes={20_000 * k}-" for k in range(1, 13)]


def test_passing_server_error_is_tried_again(server, tmp_path):
    server.statuses = [503, 500]
    assert download(server.url, tmp_path / "file.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_wrong_checksum_is_refused_and_no_file_is_left(server, tmp_path, algorithm):
    found = hashlib.new(algorithm, CONTENT).hexdigest()
    expected = "0" * len(found)
    with pytest.raises(FedMomError, match="Try again") as error:
        download(server.url, tmp_path / "file.zip", **{algorithm: expected})
    assert all(part in str(error.value) for part in (server.url, found, expected))
    assert names(tmp_path) == []


def test_part_that_is_whole_is_checked_and_named_without_asking_again(server, tmp_path):
    server.cuts = [len(CONTENT) - 1, *[0] * 9]
    target = tmp_path / "file.zip"
    with pytest.raises(FedMomError):
        download(server.url, target)
    with (tmp_path / "file.zip.part").open("ab") as part:  # as if killed before the renaming
        part.write(CONTENT[-1:])
    server.log = []
    assert download(server.url, target, sha256=SHA256).read_bytes() == CONTENT
    assert server.log == []


def test_part_longer_than_the_file_is_thrown_away(server, tmp_path):
    target = stuck(server, tmp_path)
    with pytest.raises(FedMomError):
        download(server.url, target)
    (tmp_path / "file.zip.part").write_bytes(CONTENT + b"more")
    server.cuts = []
    assert download(server.url, target).read_bytes() == CONTENT


def test_unreadable_note_means_a_new_start(server, tmp_path):
    (tmp_path / "file.zip.part").write_bytes(b"old")
    (tmp_path / "file.zip.part.json").write_text("[1")
    assert download(server.url, tmp_path / "file.zip").read_bytes() == CONTENT
    assert server.log == [None]


def test_file_of_untold_length_is_fetched(server, tmp_path):
    server.length = False
    assert download(server.url, tmp_path / "file.zip", sha256=SHA256).read_bytes() == CONTENT


def test_missing_file_is_a_sentence_with_the_address_and_the_way_by_hand(server, tmp_path):
    server.statuses = [404]
    with pytest.raises(FedMomError, match=r"404 Not Found.*by hand") as error:
        download(server.url, tmp_path / "file.zip")
    assert server.url in str(error.value)
    assert str(tmp_path / "file.zip") in str(error.value)
    assert len(server.log) == 1  # trying again would not help
    assert names(tmp_path) == []


def test_no_connection_is_a_sentence_with_the_address_and_the_way_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAITS", (0.001,))
    with Server() as closed:
        url = closed.url  # nobody listens there any more
    with pytest.raises(FedMomError, match=r"refused.*by hand") as error:
        download(url, tmp_path / "file.zip")
    assert url in str(error.value)
    assert str(tmp_path / "file.zip") in str(error.value)


def test_present_file_is_not_fetched_again(server, tmp_path):
    target = tmp_path / "file.zip"
    target.write_bytes(CONTENT)
    assert download(server.url, target, sha256=SHA256) == target
    assert download(server.url, target) == target
    assert server.log == []


def test_present_file_with_a_wrong_checksum_is_refused_and_kept(server, tmp_path):
    target = tmp_path / "file.zip"
    target.write_bytes(b"mine")
    with pytest.raises(FedMomError, match="Remove it"):
        download(server.url, target, sha256=SHA256)
    assert target.read_bytes() == b"mine"
    assert server.log == []


def test_ctrl_c_keeps_the_part_for_the_next_call(server, tmp_path):
    target, go_on = tmp_path / "file.zip", threading.Event()

    def interrupt() -> None:
        while part_size() < 100_000:
            go_on.wait(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        go_on.wait(10)  # the connection hangs meanwhile

    def part_size() -> int:
        part = tmp_path / "file.zip.part"
        return part.stat().st_size if part.exists() else 0

    server.cuts, server.at_cut = [150_000], interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            download(server.url, target)
    finally:
        go_on.set()
    kept = part_size()
    assert 100_000 <= kept <= 150_000
    assert not target.exists()
    assert download(server.url, target, sha256=SHA256).read_bytes() == CONTENT
    assert server.log == [None, f"bytes={kept}-"]


def test_silent_server_times_out(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    done = threading.Event()
    server.cuts, server.at_cut = [10, *[0] * 9], lambda: done.wait(5)
    try:
        with pytest.raises(FedMomError, match="timed out"):
            download(server.url, tmp_path / "file.zip")
    finally:
        done.set()


def test_redirection_is_followed(server, tmp_path):
    server.location = "/elsewhere"
    assert download(server.url, tmp_path / "file.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/x", "file:///etc/hostname"])
def test_redirection_to_another_kind_of_address_is_not_followed(
    server, tmp_path, monkeypatch, location
):
    monkeypatch.setattr(module, "WAITS", ())
    server.location = location
    with pytest.raises(FedMomError, match="could not be fetched"):
        download(server.url, tmp_path / "file.zip")
    assert names(tmp_path) == []


class PlainHttps(urllib.request.HTTPSHandler):
    """https without its encryption, so that the server here can play both parts."""

    def https_open(self, req):
        return self.do_open(http.client.HTTPConnection, req)


@pytest.fixture(name="https")
def https_url(server, monkeypatch):
    monkeypatch.setattr(urllib.request, "HTTPSHandler", PlainHttps)
    return server.url.replace("http:", "https:")


@pytest.mark.parametrize("location", ["{http}", "HTTP{rest}", "ftp{rest}"])
def test_redirection_from_https_to_another_kind_of_address_is_refused(
    server, https, tmp_path, location
):
    server.location = location.format(http=server.url, rest=server.url.removeprefix("http"))
    with pytest.raises(FedMomError, match=r"fetched: the server redirects to .* not https"):
        download(https, tmp_path / "file.zip")
    assert len(server.log) == 1
    assert names(tmp_path) == []


def test_redirection_within_https_and_to_it_is_followed(server, https, tmp_path):
    server.location = https + "?other"
    assert download(https, tmp_path / "a.zip").read_bytes() == CONTENT
    server.location = "/relative"
    assert download(https, tmp_path / "b.zip").read_bytes() == CONTENT
    server.location = https
    assert download(server.url, tmp_path / "c.zip").read_bytes() == CONTENT


def test_both_sums_are_checked_where_both_are_known(server, tmp_path):
    md5 = hashlib.md5(CONTENT).hexdigest()
    download(server.url, tmp_path / "a.zip", sha256=SHA256, md5=md5)
    with pytest.raises(FedMomError, match="its sha256 is"):
        download(server.url, tmp_path / "b.zip", sha256="0" * 64, md5=md5)


def test_bar_with_rate_is_shown_on_a_terminal_only(server, tmp_path, monkeypatch, capfd):
    download(server.url, tmp_path / "quiet.zip", sha256=SHA256)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any output for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    download(server.url, tmp_path / "shown.zip", sha256=SHA256)
    out, err = capfd.readouterr()
    assert not out
    assert "shown.zip" in err
    assert "300.0/300.0 kB" in err
    assert "B/s" in err


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "file:///etc/hostname", "x.zip"])
def test_other_kinds_of_address_are_refused(tmp_path, url):
    with pytest.raises(FedMomError, match="http"):
        download(url, tmp_path / "file.zip")


def test_folder_that_cannot_be_written_is_a_sentence(server, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FedMomError, match="cannot be written"):
        download(server.url, tmp_path / "taken" / "file.zip")


def test_checksum_is_the_algorithms_own(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    assert checksum(tmp_path / "a") == SHA256
    assert checksum(tmp_path / "a", "md5") == hashlib.md5(CONTENT).hexdigest()
