"""The connections of a small server: few at once, and none that keeps others out."""

import contextlib
import socket
import threading
import time

MOST = 32  # open at once
SECONDS_TO_ASK = 10.0  # for a whole request


class Connections:
    """Open connections, and which of them have not asked for anything yet.

    One that sends its request slowly or never is closed after ``SECONDS_TO_ASK``, or when
    somebody else needs its place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._silent: dict[socket.socket, float] = {}  # with their deadlines, oldest first

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: socket.socket) -> bool:
        """Take a new connection, in the place of a silent one if need be."""
        with self._lock:
            if len(self._open) >= MOST and not self._drop_oldest():
                return False
            self._open.add(connection)
            self._silent[connection] = time.monotonic() + SECONDS_TO_ASK
            return True

    def has_asked(self, connection: socket.socket) -> None:
        """Note that a request is there whole: answering it may take its time."""
        with self._lock:
            self._silent.pop(connection, None)

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._open.discard(connection)
            self._silent.pop(connection, None)

    def drop_late(self) -> None:
        """Close those whose request is overdue."""
        with self._lock:
            while self._silent and next(iter(self._silent.values())) <= time.monotonic():
                self._drop_oldest()

    def _drop_oldest(self) -> bool:
        if not self._silent:
            return False
        oldest = next(iter(self._silent))
        del self._silent[oldest]
        self._open.discard(oldest)
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and ends
        return True
