"""The page of a run in progress, served to browsers on this machine only."""

import contextlib
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.reports.html import Section, content, render

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
USUAL_PORT = 8477
AT_ONCE = 2**14  # bytes of an answer: whoever does not take so many in time is dropped
SECONDS_TO_TAKE = 10.0
# Reading the logs of a large sweep takes time; looking on must not slow training down.
SECONDS_KEPT = 1.0
SHARE_OF_TIME = 0.1
MOST = 32  # connections open at once
SECONDS_TO_ASK = 10.0  # for a whole request


@dataclass(frozen=True)
class View:
    """The page at one moment, and the status of the run: a word and a sentence."""

    title: str
    about: str
    sections: Sequence[Section]
    state: str
    text: str


class Connections:
    """Open connections, and when each must have sent its request, or taken a part of the answer.

    A connection that sends slowly or never is closed after ``SECONDS_TO_ASK``, one that does not
    read after ``SECONDS_TO_TAKE``, and either when another one needs its place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}  # none while the answer is made

    def __len__(self) -> int:
        return len(self._deadlines)

    def admit(self, connection: socket.socket) -> bool:
        """Accept a new connection, instead of a silent one if there are too many."""
        with self._lock:
            if len(self) >= MOST and not self._drop_oldest():
                return False
            self._deadlines[connection] = time.monotonic() + SECONDS_TO_ASK
            return True

    def has_asked(self, connection: socket.socket) -> None:
        """Note that the whole request has arrived: the answer may take longer."""
        self._wait_until(connection, math.inf)

    def is_sent(self, connection: socket.socket) -> None:
        """Note that a part of the answer is being sent."""
        self._wait_until(connection, time.monotonic() + SECONDS_TO_TAKE)

    def _wait_until(self, connection: socket.socket, deadline: float) -> None:
        with self._lock:
            if connection in self._deadlines:
                self._deadlines[connection] = deadline

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._deadlines.pop(connection, None)

    def drop_late(self) -> None:
        """Close those whose request is overdue."""
        with self._lock:
            while self._drop_oldest(time.monotonic()):
                pass

    def _drop_oldest(self, due: float = sys.float_info.max) -> bool:
        """Close the connection that has been silent for longest, if it is due."""
        oldest = min(self._deadlines, key=self._deadlines.__getitem__, default=None)
        if oldest is None or self._deadlines[oldest] > due:
            return False
        del self._deadlines[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and ends
        return True


class PageServer(ThreadingHTTPServer):
    """Serves the page, and its news as JSON, until it is shut down."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, look: Callable[[], View], port: int) -> None:
        self.connections = Connections()
        self._look, self._reading = look, threading.Lock()
        self._view: View | None = None
        self._page: tuple[View, bytes] | None = None
        self._drawing = threading.Lock()
        self._kept_until = 0.0
        super().__init__((HOST, port), _Handler)

    def view(self) -> View:
        """Return the page as it was a moment ago; all requests share what was read."""
        with self._reading:
            began = time.monotonic()
            if self._view is None or began >= self._kept_until:
                self._view = self._look()
                took = time.monotonic() - began
                self._kept_until = began + max(SECONDS_KEPT, took / SHARE_OF_TIME)
            return self._view

    def page(self) -> bytes:
        """Return the view as HTML, which is drawn once for all who ask."""
        view = self.view()
        with self._drawing:
            if self._page is None or self._page[0] is not view:
                self._page = view, render(view.title, view.sections, view.about, live=True)
            return self._page[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, if there is room for one."""
        if self.connections.admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.connections.closed(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close overdue connections, between requests."""
        self.connections.drop_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{HOST}:{self.server_port}/"


def open_server(look: Callable[[], View], port: int | None) -> PageServer:
    """Return a server at the port; without one, at the usual port or any free one."""
    try:
        return PageServer(look, USUAL_PORT if port is None else port)
    except (OSError, OverflowError) as error:
        if port is not None:
            raise FedMomError(
                f"--port {port} cannot be used ({error}). Choose another, or leave it out."
            ) from None
        return PageServer(look, 0)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = SECONDS_TO_TAKE

    def do_GET(self) -> None:
        self.server.connections.has_asked(self.connection)
        # Refuse host names that a foreign page points to this machine (DNS rebinding), and
        # requests with two names, of which a proxy might believe the second.
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].partition(":")[0].lower() not in NAMES:
            self.send_error(403, "Only for browsers on this machine")
            return
        path = self.path.partition("?")[0]
        if path == "/data.json":
            self._answer("application/json", json.dumps(self._news(), allow_nan=False).encode())
        elif path == "/":
            self._send_page()
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Log nothing: a line every two seconds helps nobody."""

    def _send_page(self) -> None:
        try:
            page = self.server.page()
        except FedMomError:  # as for the news; a reload may find the folder again
            self.send_error(503, "The run cannot be read")
        else:
            self._answer("text/html; charset=utf-8", page)

    def _news(self) -> dict[str, Any]:
        try:
            view = self.server.view()
        except FedMomError as error:  # the folder is gone, say
            return {"state": "lost", "text": str(error)}
        return {"state": view.state, "text": view.text, **content(view.sections)}

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        try:
            for place in range(0, len(body), AT_ONCE):
                self.server.connections.is_sent(self.connection)
                self.wfile.write(body[place : place + AT_ONCE])
        except OSError:
            self.close_connection = True  # the browser went away, or reads no more
