"""Who takes part: every device's number of samples, asked once and remembered by its key."""

import json
import math
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
from flwr.app import ConfigRecord, MessageType, RecordDict
from pydantic import Field, TypeAdapter

from fedmom.core.errors import FedMomError
from fedmom.core.files import LARGEST, parse_json
from fedmom.core.types import Say
from fedmom.core.validation import MOST
from fedmom.data.federated import Features, FederatedData, Split, Task
from fedmom.data.schema import Schema, common
from fedmom.runtimes.devices.link import SECONDS_BETWEEN_LOOKS, Link, Node
from fedmom.runtimes.devices.wire import TASK, UnusableReplyError, number

QUERY_SECONDS = 60.0
SECONDS_BETWEEN_NEWS = 10.0
SECONDS_TO_MEND = 30.0
MOST_VALUES = 2**24  # numbers in one input, and labels: more is no claim to believe
LONGEST_NAME = 100
LONGEST_DEADLINE = 30 * 24 * 3600
DIGITS = tuple("0123456789")


class DeviceOptions(NamedTuple):
    """What a server asks of its devices: the options of the runtime.

    Args:
        devices: How many must be there before a run begins.
        deadline: Seconds that a device has to answer.
        least: The fewest replies that make a round.
        max_samples: The most samples that a device may claim.
        max_classes: The most classes that a device may claim, unless half of the devices have more.
    """

    devices: int = 1
    deadline: float = 600.0
    least: int = 1
    max_samples: int = 100_000
    max_classes: int = 1000

    def checked(self) -> "DeviceOptions":
        """Return the options, if they are possible."""
        for name, value in self._asdict().items():
            if name != "deadline" and value < 1:
                raise FedMomError(f"flower: {name}={value} must be at least 1.")
        if not 0 < self.deadline <= LONGEST_DEADLINE:
            raise FedMomError(
                f"flower: deadline={self.deadline} must be a number of seconds greater than 0, at"
                f" most {LONGEST_DEADLINE:,}."
            )
        return self


Samples = Annotated[int, Field(ge=0, le=MOST)]


class Device(NamedTuple):
    """What is known of a device, whether it is online or not."""

    key: str
    name: str
    train: Samples
    test: Samples


DEVICES = TypeAdapter(Annotated[list[Device], Field(min_length=1)])


@dataclass(frozen=True, eq=False, repr=False)
class DeviceData(FederatedData):
    """A population whose samples are on devices: the server knows how many, and no more."""

    run: str = ""
    devices: tuple[Device, ...] = ()
    link: Link | None = None
    schema: Schema | None = None  # not in runs of earlier versions


def population(
    run: str,
    features: Features,
    devices: Sequence[Device],
    link: Link | None,
    schema: Schema | None = None,
) -> DeviceData:
    """Return the population of a run."""
    train, test = (
        np.array([getattr(device, split) for device in devices], np.int64)
        for split in ("train", "test")
    )
    return DeviceData(
        name="devices",
        users=[device.name for device in devices],
        features=features,
        arrays={} if schema is None else schema.no_inputs(),
        train=Split(np.zeros_like(train), train),
        test=Split(np.zeros_like(test), test),
        class_names=None if schema is None else schema.class_names,
        columns=None if schema is None else schema.columns,
        run=run,
        devices=tuple(devices),
        link=link,
        schema=schema,
    )


def to_json(data: DeviceData) -> bytes:
    """Return what a run folder remembers of its devices."""
    known = {
        "run": data.run,
        "features": data.features,
        "schema": None if data.schema is None else parse_json(data.schema.to_json()),
        "devices": [device._asdict() for device in data.devices],
    }
    return json.dumps(known, indent=2).encode()


def from_json(content: bytes, link: Link | None = None) -> DeviceData:
    """Return the population that a run folder remembers."""
    try:
        known = parse_json(content)
        features = _checked_features(*known["features"])  # no task in folders of earlier versions
        devices = DEVICES.validate_python(known["devices"], strict=True)
        schema = known.get("schema")
        if schema is not None:
            schema = _checked_schema(json.dumps(schema))
        return population(str(known["run"]), features, devices, link, schema)
    except (ValueError, KeyError, TypeError, AttributeError, FedMomError):
        raise FedMomError(
            "devices.json, which says who takes part in the run, is damaged. Start another run."
        ) from None


def meet(link: Link, options: DeviceOptions, say: Say) -> DeviceData:
    """Wait for devices, ask what each of them has, and return the population of a new run.

    A device whose data is of another kind than that of most, or that claims too much, is left out.

    Args:
        link: The way to the devices.
        options: How many devices must have answered, and what is believed of each.
        say: Told of who is there, and of who is left out and why.
    """
    least = options.devices
    known: dict[str, tuple[Device, Schema]] = {}
    asked: dict[str, float] = {}  # when: who could not take part may mend what is wrong
    told = -SECONDS_BETWEEN_NEWS
    while True:
        now = time.monotonic()
        new = [n for n in link.nodes() if now - asked.get(n.key, -math.inf) > SECONDS_TO_MEND]
        new = [node for node in new if node.key not in known]
        asked |= dict.fromkeys((node.key for node in new), now)
        known |= _ask(link, new, options.max_samples, say)
        if len(known) >= least:
            break
        if time.monotonic() - told >= SECONDS_BETWEEN_NEWS:
            told = time.monotonic()
            say(f"Waiting for devices: {len(known)} of {least} are there.")
        time.sleep(SECONDS_BETWEEN_LOOKS * 5)
    found = sorted(known.values(), key=lambda pair: (natural(pair[0].name), pair[0].key))
    found, schema = agreed(found, options.max_classes, say)
    devices = [device for device, _ in found]
    say(f"{len(devices)} devices take part: {', '.join(device.name for device in devices)}.")
    _tell_heavy(devices, say)
    return population(secrets.token_hex(8), schema.features, devices, link, schema)


Met = tuple[Device, Schema]


class _Group(NamedTuple):
    """Devices whose data can be trained on together."""

    met: list[Met]
    schema: Schema


def agreed(found: Sequence[Met], max_classes: int, say: Say) -> tuple[list[Met], Schema]:
    """Return the devices whose data can be trained on together, and the schema of all of them.

    More than half must agree; the others are named and left out.

    Args:
        found: The devices, and the schemas of their data.
        max_classes: The most classes that a device may claim, unless most devices claim more.
        say: Told who is left out, and why.
    """
    # More than half of the devices claim at least so many.
    usual = sorted(schema.classes for _, schema in found)[(len(found) - 1) // 2]
    most = max(max_classes, usual)
    groups: list[_Group] = []
    for device, schema in found:
        if schema.classes > most:
            say(
                f"{device.name} does not take part: it claims {schema.classes:,} classes, and"
                f" {most:,} are believed. If it has them, raise max_classes in the runtime."
            )
        else:
            _put(groups, (device, schema))
    first, *others = sorted(groups, key=lambda group: len(group.met), reverse=True)
    for met in (met for group in others for met in group.met):
        _, why = _together(first, met)
        if 2 * len(first.met) <= sum(len(group.met) for group in groups):
            raise FedMomError(f"{why} No kind of data is that of more than half of the devices.")
        say(
            f"{met[0].name} does not take part: {why} Correct its data and start its program again,"
            " or delete its key from server/keys."
        )
    return first.met, first.schema


def _put(groups: list[_Group], met: Met) -> None:
    """Add a device to the first group that its data fits, or to a new one."""
    for place, group in enumerate(groups):
        schema, _ = _together(group, met)
        if schema is not None:
            groups[place] = _Group([*group.met, met], schema)
            return
    groups.append(_Group([met], common({"": met[1]})))


def _together(group: _Group, met: Met) -> tuple[Schema | None, str]:
    """Return the schema of a group with one more device, or why there is none."""
    names = _called(group.met[0][0]), _called(met[0])
    try:
        return common(dict(zip(names, (group.schema, met[1]), strict=True))), ""
    except FedMomError as error:
        return None, str(error)


def _called(device: Device) -> str:
    return f"{device.name} ({device.key[:8]})"


def _tell_heavy(devices: Sequence[Device], say: Say) -> None:
    """Say so if one device claims more samples than all others together."""
    whole, most = sum(d.train for d in devices), max(devices, key=lambda d: d.train)
    if len(devices) > 2 and 2 * most.train > whole:
        say(
            f"{most.name} claims {most.train:,} of {whole:,} training samples, and counts for as"
            " much. If it has fewer, use a smaller max_samples or --weighting uniform."
        )


def _ask(
    link: Link, nodes: Sequence[Node], max_samples: int, say: Say
) -> dict[str, tuple[Device, Schema]]:
    """Ask devices what they have."""
    content = RecordDict({TASK: ConfigRecord({"ask": "samples"})})
    sent = link.send(MessageType.QUERY, {node.id: content for node in nodes}, QUERY_SECONDS)
    asked = {sent[node.id]: node for node in nodes if sent[node.id]}
    known = {}
    while asked:
        for reply in link.take(list(asked), 0):
            node = asked.pop(reply.asked)
            try:
                known[node.key] = _believed(node, reply.got(), max_samples)
            except UnusableReplyError as error:
                say(f"{node.name} does not take part: {error}.")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return known


def _believed(node: Node, content: RecordDict, max_samples: int) -> tuple[Device, Schema]:
    """Return what a device says of itself, if that can be."""
    train, test = (number(content, split, int) for split in ("train", "test"))
    if not (1 <= train <= max_samples and 0 <= test <= max_samples):
        raise UnusableReplyError(
            f"it claims {train} training and {test} test samples; believed are 1 to {max_samples}"
            " (the runtime's max_samples)"
        )
    name = " ".join(node.name.split())[:LONGEST_NAME]
    return Device(node.key, name, train, test), _schema(content)


def _schema(content: RecordDict) -> Schema:
    told = content.get(TASK)
    try:
        return _checked_schema(str(told["schema"]) if isinstance(told, ConfigRecord) else "")
    except (ValueError, TypeError, KeyError, FedMomError):
        raise UnusableReplyError("it does not say what its samples look like") from None


def _checked_schema(text: str) -> Schema:
    """Return what samples look like, if that can be; an error of ``_checked_features`` if not."""
    if len(text) > LARGEST:
        raise ValueError("no schema")
    found = Schema.from_json(text.encode(), "the schema")
    _checked_features(*found.features)
    return found


def _checked_features(kind: Any, shape: Any, classes: Any, task: Any = "classes") -> Features:
    """Return what samples look like, if that can be; a ``ValueError`` or ``TypeError`` if not."""
    whole = [type(n) is int and 0 < n <= MOST_VALUES for n in [*shape, classes]]
    known = kind in ("vector", "image", "text") and task in get_args(Task)
    if not (known and len(shape) <= 4 and all(whole)):
        raise ValueError("no features")
    return Features(kind, tuple(shape), classes, task)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts device-2 before device-10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if part[:1] in DIGITS else (0, part) for part in parts]
