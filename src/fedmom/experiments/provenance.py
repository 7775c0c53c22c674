"""What a run was started with, so that it cannot resume on other data or settings unnoticed."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from fedmom.core import user_code
from fedmom.core.errors import FedMomError
from fedmom.core.files import append_synced, parse_json, read_file, write_atomic
from fedmom.core.types import Say
from fedmom.data.federated import FederatedData
from fedmom.data.schema import Schema
from fedmom.data.summary import facts
from fedmom.experiments import decided, object_names
from fedmom.experiments.settings import RunConfig, kebab

STARTED, CHANGES, SCHEMA = "started.json", "changes.jsonl", "schema.json"
# What changes no number of the run.
FREE = ("runtime", "tensorboard")
PYTHON = "python"


def record(path: Path, config: RunConfig, data: FederatedData) -> None:
    """Record the settings, the data and the user's own code of a run.

    Args:
        path: The run's folder.
        config: Its complete settings.
        data: Its data.
    """
    fact = {"settings": _settings(config), "data": facts(data), "code": _code(config)}
    write_atomic(path / SCHEMA, Schema.of(data).to_json())
    write_atomic(path / STARTED, json.dumps(fact, indent=2).encode())


def trained_on(path: Path, data: FederatedData, say: Say) -> Schema:
    """Return what a run was trained on.

    Folders of earlier versions do not say it; there it is what the data is now.

    Args:
        path: The run's folder.
        data: The data as it is now.
        say: Told if that is not what it was.
    """
    if (found := _schema(path)) is not None:
        return found
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        if dict(parse_json(read_file(path / STARTED))["data"]) != facts(data):
            say(
                f"{path} is of an earlier version and has no {SCHEMA}, and its data has changed"
                " since. Columns and classes are not compared with those that it was trained on."
            )
    return Schema.of(data)


def _schema(path: Path) -> Schema | None:
    try:
        return Schema.from_json(read_file(path / SCHEMA), str(path / SCHEMA))
    except FileNotFoundError:
        return None


def check(path: Path, config: RunConfig, data: FederatedData, *, accept: bool) -> list[str]:
    """Refuse to resume if something has changed since the start, unless that is accepted.

    Folders of earlier versions have no record, so nothing is reported.

    Args:
        path: The run's folder.
        config: The settings as they are now.
        data: The data as it is now.
        accept: Whether changes are accepted.

    Returns:
        What has changed, a clause for each.
    """
    found = _changes(path, config, data)
    if found and not accept:
        raise FedMomError(
            f"{path} was started with other values: {'; '.join(found)}. Change them back, or accept"
            f" them: fedmom resume --accept-changes {path}"
        )
    return found


def _changes(path: Path, config: RunConfig, data: FederatedData) -> list[str]:
    try:
        found = parse_json(read_file(path / STARTED))
        before, data_before = dict(found["settings"]), dict(found["data"])
        code_before = dict(found.get("code", {}))  # not in folders of earlier versions
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FedMomError(f"{path / STARTED} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        return [f"{STARTED}, the record of what the run was started with, is damaged"]
    data_now = facts(data)
    if data_before == data_now:  # wherever it lies by now
        before.pop("data", None)
    settings, code = _settings(config), _code(config)
    if not code_before and "@" in config.algorithm + config.aggregate:
        # An earlier version's, which did not record what objects decide.
        before = {key: before[key] for key in before.keys() - decided.settings(config).keys()}
    pairs = [(kebab(key), before[key], settings[key]) for key in settings if key in before]
    pairs += [(f"{key} of the data", data_before.get(key), data_now[key]) for key in data_now]
    if code_before.get(PYTHON) == code[PYTHON]:  # each compiles to other code
        pairs += [(key, code_before[key], code[key]) for key in code if key in code_before]
    pairs += _forms(path, data)
    return [_clause(name, a, b) for name, a, b in pairs if a != b]


def _forms(path: Path, data: FederatedData) -> list[tuple[str, Any, Any]]:
    """Return what the form of the data was and is, where both are known."""
    if (schema := _schema(path)) is None:
        return []
    before, now = schema.facts(), Schema.of(data).facts()
    both = [key for key in now if None not in (before[key], now[key])]
    return [(f"{key} of the data", before[key], now[key]) for key in both]


def _clause(name: str, before: Any, now: Any) -> str:
    if str(now).startswith(user_code.DIGITS):
        return f"{name} has changed"
    return f"{name} was {_text(before)} and is {_text(now)}"


def accept(
    path: Path, round_: int, found: list[str], config: RunConfig, data: FederatedData
) -> None:
    """Record changes that were accepted after a round, as what the run has from now on."""
    line = json.dumps({"round": round_, "changes": found})
    append_synced(path / CHANGES, line.encode() + b"\n")
    record(path, config, data)


def _settings(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude=set(FREE))


def _code(config: RunConfig) -> dict[str, str]:
    """Return what the settings' functions of the user's own are made of, and for which Python."""
    parts = object_names.user_code(config.model_dump())
    return {PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}", **parts}


def _text(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:12]}..."
