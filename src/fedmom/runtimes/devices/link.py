"""The server's end of the wire: which device is which client, and messages to and fro.

Replies are taken from Flower's Grid piece by piece, each bounded before it is expanded.
``Grid.pull_messages`` expands what it finds, whatever its size: an array of one repeated chunk
may have gigabytes in a few megabytes of message. It also waits for devices that have not sent all
of a message, and one message that cannot be read costs the others of the same call. With Grids
that have no wire, such as the simulation's, there is nothing to bound.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedmom.runtimes.devices.wire import UnusableReplyError, size_of

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_OVERDUE = 5.0  # the SuperLink itself tells of most messages whose time is over
IN_VAIN, GONE = "it did not answer in time", "it has gone offline"
# What Flower's own error codes mean, for a round's record. Others carry the device's own words.
ERRORS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "it could not load the app",
    ErrorCode.MESSAGE_UNAVAILABLE: IN_VAIN,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: IN_VAIN,
    ErrorCode.NODE_UNAVAILABLE: GONE,
}
ABSENT = (IN_VAIN, GONE)  # a device that did not answer, and may do so later
Journal = Callable[[dict[str, Any]], None]
LONGEST = 200  # letters of a device's own words
OVERHEAD = 2**16  # bytes of a message besides its arrays
OBJECTS = 1000  # parts of a message, besides those that its size explains
CHUNK = 2**20  # bytes of an array in one part, at the least, but for its last one


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

    def got(self) -> RecordDict:
        """Return the content; where there is none, ``UnusableReplyError`` says why."""
        if self.content is None:
            raise UnusableReplyError(self.fault)
        return self.content


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


def one_line(reason: str | None) -> str:
    """Return a device's own words: short, in one line, without what would steer a terminal."""
    words = " ".join((reason or "it failed").split())[:LONGEST]
    return "".join(letter if letter.isprintable() else "?" for letter in words)


class DeviceReply(NamedTuple):
    """An answer to one message: the reply, or why it cannot be used."""

    asked: str  # the message that it answers
    message: Message | None
    fault: str = ""


class _Partial(NamedTuple):
    """A reply whose parts have not all been taken."""

    id: str
    missing: list[str]
    contents: dict[str, bytes]


class Inbox:
    """Takes replies from a Grid.

    Args:
        grid: Flower's Grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._client: Any = getattr(grid, "_runtime_client", None)  # of HttpGrid
        self._partial: dict[str, _Partial] = {}

    def take(self, asked: Iterable[str], most: int) -> Iterator[DeviceReply]:
        """Yield the replies that are there, to some of the messages that were sent.

        Args:
            asked: The messages' ids.
            most: The bytes of a reply's arrays, at most.
        """
        wanted = set(asked)
        if self._client is None:
            for message in self._grid.pull_messages(wanted):
                yield DeviceReply(message.metadata.reply_to_message_id, message)
            return
        self._partial = {a: p for a, p in self._partial.items() if a in wanted}
        yield from self._begin(wanted - self._partial.keys(), most)
        for answered, partial in list(self._partial.items()):
            reply = self._go_on(answered, partial, most)
            if reply is not None:
                del self._partial[answered]
                self._confirm(partial.id)
                yield reply

    def _begin(self, wanted: set[str], most: int) -> Iterator[DeviceReply]:
        """Ask which replies there are."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        if not wanted:
            return
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=sorted(wanted)))
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            answered, own = message.metadata.reply_to_message_id, message.metadata.message_id
            if answered not in wanted:
                continue
            parts: dict[str, None] = {}
            for node in iterate_object_tree(tree):
                parts[node.object_id] = None
                if len(parts) > OBJECTS + most // CHUNK:
                    self._confirm(own)
                    yield DeviceReply(answered, None, "it is in too many parts")
                    break
            else:
                self._partial[answered] = _Partial(own, list(parts), {})

    def _go_on(self, answered: str, partial: _Partial, most: int) -> DeviceReply | None:
        """Take the parts that are there; return the reply if that were all, or it is too large."""
        from flwr.proto.message_pb2 import PullObjectRequest

        for part in list(partial.missing):
            response = self._client.PullObject(PullObjectRequest(object_id=part, **self._place()))
            if not response.object_found:
                return DeviceReply(answered, None, "a part of it is missing")
            if not response.object_available:
                return None
            partial.contents[part] = response.object_content
            partial.missing.remove(part)
            if sum(map(len, partial.contents.values())) > most + OVERHEAD:
                return DeviceReply(answered, None, f"it has more than {most + OVERHEAD:,} bytes")
        try:
            return DeviceReply(answered, _expanded(partial, most))
        except UnusableReplyError as error:
            return DeviceReply(answered, None, str(error))
        except Exception as error:  # whatever a stranger's bytes make of Flower's reader
            return DeviceReply(answered, None, f"it cannot be read ({type(error).__name__})")

    def _confirm(self, message_id: str) -> None:
        """Tell the SuperLink that it need not keep a reply."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        request = ConfirmMessageReceivedRequest(message_object_id=message_id, **self._place())
        self._client.ConfirmMessageReceived(request)

    def _place(self) -> dict[str, Any]:
        grid: Any = self._grid  # an HttpGrid
        return {"node": grid.node, "run_id": grid.run.run_id}


def _expanded(partial: _Partial, most: int) -> Message:
    """Return a message from its parts, if it stays small."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    parts = partial.contents
    size = sum(_size_when_expanded(content, parts) for content in parts.values())
    if size > most + OVERHEAD:
        raise UnusableReplyError(f"its arrays have {size:,} bytes, and at most {most:,} are used")
    message = inflate_object_from_contents(partial.id, dict(parts))
    if not isinstance(message, Message):
        raise UnusableReplyError("it is no message")
    message.metadata.__dict__["_message_id"] = partial.id
    return message


def _size_when_expanded(content: bytes, parts: dict[str, bytes]) -> int:
    """Return the bytes that an array has when its chunks, which may repeat, are put together."""
    head, _, body = content.partition(b"\x00")
    kind, children, _ = head.decode().split(" ")
    if kind != "Array":
        return 0
    ids = children.split(",")
    return sum(len(parts[ids[place]]) for place in json.loads(body)["arraychunk_ids"])
