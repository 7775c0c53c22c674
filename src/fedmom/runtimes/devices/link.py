"""The server's end of the wire: which device is which client, and messages to and fro."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedmom.runtimes.devices.inbox import Inbox
from fedmom.runtimes.devices.wire import size_of

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_OVERDUE = 5.0  # the SuperLink itself tells of most messages whose time is over
IN_VAIN = "it did not answer in time"
# What Flower's own error codes mean, for a round's record. Others carry the device's own words.
ERRORS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "it could not load the app",
    ErrorCode.MESSAGE_UNAVAILABLE: IN_VAIN,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: IN_VAIN,
    ErrorCode.NODE_UNAVAILABLE: "it has gone offline",
    ErrorCode.CLIENT_APP_CRASHED: "its client process crashed",
}
Journal = Callable[[dict[str, Any]], None]
LONGEST = 200  # letters of a device's own words


class Node(NamedTuple):
    """A device that is online."""

    id: int
    key: str  # of its public key, which stays the same
    name: str


class Sent(NamedTuple):
    """A message under way."""

    node: int
    at: float
    ttl: float


class Answered(NamedTuple):
    """What became of a message: its content, or why there is none."""

    asked: str
    content: RecordDict | None
    fault: str
    seconds: float
    bytes: int


class Link:
    """Messages to devices and back.

    Args:
        grid: Flower's Grid.
        journal: Told who was asked, who answered and who did not, as it happens.

    Its ``settings`` are texts that are sent with every task: what devices need to know of the run.
    """

    def __init__(self, grid: Grid, journal: Journal = lambda _: None) -> None:
        self.settings: dict[str, str] = {}
        self.journal = journal
        self._grid, self._inbox = grid, Inbox(grid)
        self._sent: dict[str, Sent] = {}

    def nodes(self) -> list[Node]:
        """Return the devices that are online."""
        return [
            Node(info.node_id, identity(info.public_key), info.name or f"node {info.node_id}")
            for info in self._grid.get_nodes()
        ]

    def send(
        self, kind: str, contents: Mapping[int, RecordDict], ttl: float, group: str = ""
    ) -> dict[int, str]:
        """Send a message to each node; return the messages' ids, "" where one cannot be sent.

        Args:
            kind: ``train``, ``evaluate`` or ``query``.
            contents: What to send to which node.
            ttl: Seconds until a reply is no longer waited for.
            group: The round, for Flower's log.
        """
        if not contents:
            return {}
        messages = [
            Message(content, node, kind, ttl=ttl, group_id=group)
            for node, content in contents.items()
        ]
        ids = dict(zip(contents, self._grid.push_messages(messages), strict=True))
        now = time.monotonic()
        self._sent |= {sent: Sent(node, now, ttl) for node, sent in ids.items() if sent}
        return ids

    def take(self, asked: Iterable[str], most: int) -> Iterator[Answered]:
        """Yield what has come back, to some of the messages, or that their time is over.

        A device that dies while it sends leaves a reply that begins and never ends.

        Args:
            asked: The messages' ids.
            most: The bytes of a reply's arrays, at most.
        """
        waiting = set(asked)
        for reply in self._inbox.take(sorted(waiting), most):
            waiting.discard(reply.asked)
            sent = self._sent.pop(reply.asked, None)
            seconds = time.monotonic() - sent.at if sent else 0.0
            fault, message, size = reply.fault, reply.message, 0
            if message is not None and message.has_error():
                fault = ERRORS.get(message.error.code) or one_line(message.error.reason)
            elif message is not None:
                size = size_of(message.content)
                if sent and message.metadata.src_node_id != sent.node:
                    fault = "it comes from another device"
            content = message.content if message is not None and not fault else None
            yield Answered(reply.asked, content, fault, seconds, size)
        now = time.monotonic()
        for late in sorted(waiting & self._sent.keys()):
            _, at, ttl = self._sent[late]
            if now - at > ttl + SECONDS_OVERDUE:
                del self._sent[late]
                yield Answered(late, None, IN_VAIN, now - at, 0)

    def forget(self, asked: Iterable[str]) -> None:
        """Wait no longer for replies to some messages."""
        for message in asked:
            self._sent.pop(message, None)


def identity(public_key: bytes) -> str:
    """Return a short name of a public key."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def online(nodes: Sequence[Node], keys: Sequence[str]) -> dict[int, int]:
    """Return the node of every client that is online, by the clients' keys in their order."""
    by_key = {node.key: node.id for node in nodes}
    return {client: by_key[key] for client, key in enumerate(keys) if key in by_key}


def one_line(reason: str | None) -> str:
    """Return a device's own words: short, in one line, without what would steer a terminal."""
    words = " ".join((reason or "it failed").split())[:LONGEST]
    return "".join(letter if letter.isprintable() else "?" for letter in words)
