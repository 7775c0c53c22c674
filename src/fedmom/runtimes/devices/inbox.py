"""Replies taken from Flower's Grid, each bounded before it is expanded.

``Grid.pull_messages`` expands what it finds, whatever its size: an array of one repeated chunk
may have gigabytes in a few megabytes of message. It also waits for devices that have not sent all
of a message, and one message that cannot be read costs the others of the same call. So messages
are taken here piece by piece. With Grids that have no wire, such as the simulation's, there is
nothing to bound.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedmom.runtimes.devices.wire import UnusableReplyError

OVERHEAD = 2**16  # bytes of a message besides its arrays
OBJECTS = 1000  # parts of a message, besides those that its size explains
CHUNK = 2**20  # bytes of an array in one part, at the least, but for its last one


class DeviceReply(NamedTuple):
    """An answer to one message: the reply, or why it cannot be used."""

    asked: str  # the message that it answers
    message: Message | None
    fault: str = ""


class _Partial:
    """A reply whose parts have not all been taken."""

    def __init__(self, message_id: str, parts: list[str]) -> None:
        self.id, self.missing = message_id, parts
        self.contents: dict[str, bytes] = {}
        self.bytes = 0


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
                    break
            if len(parts) > OBJECTS + most // CHUNK:
                self._confirm(own)
                yield DeviceReply(answered, None, "it is in too many parts")
            else:
                self._partial[answered] = _Partial(own, list(parts))

    def _go_on(self, answered: str, partial: _Partial, most: int) -> DeviceReply | None:
        """Take the parts that are there; return the reply if that were all, or it is too large."""
        from flwr.proto.message_pb2 import PullObjectRequest

        for part in list(partial.missing):
            request = PullObjectRequest(
                node=self._grid.node,  # type: ignore[attr-defined]
                run_id=self._grid.run.run_id,
                object_id=part,
            )
            response = self._client.PullObject(request)
            if not response.object_found:
                return DeviceReply(answered, None, "a part of it is missing")
            if not response.object_available:
                return None
            partial.bytes += len(response.object_content)
            if partial.bytes > most + OVERHEAD:
                return DeviceReply(answered, None, f"it has more than {most + OVERHEAD:,} bytes")
            partial.contents[part] = response.object_content
            partial.missing.remove(part)
        try:
            return DeviceReply(answered, _expanded(partial, most))
        except UnusableReplyError as error:
            return DeviceReply(answered, None, str(error))
        except Exception as error:  # whatever a stranger's bytes make of Flower's reader
            return DeviceReply(answered, None, f"it cannot be read ({type(error).__name__})")

    def _confirm(self, message_id: str) -> None:
        """Tell the SuperLink that it need not keep a reply."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node,  # type: ignore[attr-defined]
                run_id=self._grid.run.run_id,
                message_object_id=message_id,
            )
        )


def _expanded(partial: _Partial, most: int) -> Message:
    """Return a message from its parts, if it stays small."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    size = sum(_size_when_expanded(content, partial.contents) for content in _all(partial))
    if size > most + OVERHEAD:
        raise UnusableReplyError(f"its arrays have {size:,} bytes, and at most {most:,} are used")
    message = inflate_object_from_contents(partial.id, partial.contents)
    if not isinstance(message, Message):
        raise UnusableReplyError("it is no message")
    message.metadata.__dict__["_message_id"] = partial.id
    return message


def _all(partial: _Partial) -> list[bytes]:
    return list(partial.contents.values())


def _size_when_expanded(content: bytes, parts: dict[str, bytes]) -> int:
    """Return the bytes that an array has when its chunks, which may repeat, are put together."""
    head, _, body = content.partition(b"\x00")
    kind, children, _ = head.decode().split(" ")
    if kind != "Array":
        return 0
    ids = children.split(",")
    return sum(len(parts[ids[place]]) for place in json.loads(body)["arraychunk_ids"])
