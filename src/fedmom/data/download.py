"""Fetching a file over HTTP: resumed where it was cut, checked, and given its name when whole.

What has arrived is in ``<target>.part``. Next to it ``<target>.part.json`` records the URL,
the server's name for this version of the file (its ETag or time of change) and its length. The
rest is asked for only of that same version, so two versions are never glued together.
"""

import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json, user_path

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Algorithm = Literal["sha256", "md5"]
TIMEOUT = 30.0  # seconds without a byte
WAITS = (1.0, 2.0, 4.0)  # seconds before each further try
CHUNK = 1 << 20
RANGE_NOT_SATISFIABLE = 416
PASSING = {408, 429, 500, 502, 503, 504}  # answers that may be another one next time


@checked
def download(
    url: str, target: str | Path, *, sha256: str | None = None, md5: str | None = None
) -> Path:
    """Fetch a file unless it is there already, check it, and return its path.

    A cut connection is tried again from where it was cut, now and on the next call; the tries
    are counted anew whenever more of the file has arrived than ever before.
    """
    target = user_path(str(target), "target")
    if not url.startswith(("http://", "https://")):
        raise FedMomError(f"{url!r} is not an http:// or https:// address.")
    given: dict[Algorithm, str | None] = {"sha256": sha256, "md5": md5}
    checksums = {name: value.lower() for name, value in given.items() if value}
    if target.exists():
        if wrong := _mismatch(target, checksums):
            raise FedMomError(f"{target} exists, but {wrong}. Remove it to fetch it again.")
        return target
    part = _Part(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part)
        if wrong := _mismatch(part.path, checksums):
            part.drop()
            raise FedMomError(
                f"The file from {url} was removed: {wrong}. Try again; if it happens again, the"
                " file on the server is not the expected one."
            )
        part.path.replace(target)
        part.drop()
    except OSError as error:  # the network's own errors have become others by now
        raise FedMomError(f"{part.path} cannot be written: {error.strerror}.") from None
    return target


@checked
def checksum(path: Path, algorithm: Algorithm = "sha256") -> str:
    """Return a file's checksum in hexadecimal."""
    with (
        _bar(f"checking {path.name}") as (progress, task),
        progress.open(path, "rb", task_id=task) as file,
    ):
        return hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]


class _Cut(Exception):  # noqa: N818
    """The network failed in a way that may pass."""


class _Version(NamedTuple):
    """What is known of the file a part belongs to."""

    url: str
    validator: str | None  # a strong ETag or a time of change
    total: int | None


class _Part:
    """What has arrived of a file, and of which version of it."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self, url: str) -> _Version | None:
        """Return the version that can be gone on with, if there is one."""
        try:
            version = _Version(**parse_json(self._note.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        resumable = version.url == url and version.validator and self.size
        return version if resumable else None

    def begin(self, version: _Version) -> None:
        self.path.write_bytes(b"")  # first, so that old bytes never meet the new note
        self._note.write_text(json.dumps(version._asdict()))

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _fetch(url: str, part: _Part) -> None:
    """Try until the part is whole, or the tries are used up."""
    furthest, failures = part.size, 0
    with _bar(part.target.name) as (progress, task):
        while True:
            try:
                return _try(url, part, progress, task)
            except _Cut as cut:
                failures = 0 if part.size > furthest else failures + 1
                furthest = max(furthest, part.size)
                if failures > len(WAITS):
                    raise FedMomError(
                        f"{url} could not be fetched: {cut}. Check the network and try again;"
                        f" what has arrived is kept. {_by_hand(part)}"
                    ) from None
                time.sleep(WAITS[max(failures, 1) - 1])


def _try(url: str, part: _Part, progress: "Progress", task: "TaskID") -> None:
    """Ask for what is missing, once."""
    known = part.version(url)
    have = part.size if known else 0
    if known and known.total == have:
        return
    headers = {"User-Agent": "fedmom"}
    if known and known.validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": known.validator}
    with _answer(urllib.request.Request(url, headers=headers), part) as response:
        version = _Version(url, _validator(response.headers), _total(response))
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # all of it, from the start
            have = 0
            part.begin(version)
        elif not _goes_on(response, known, version, have):
            part.drop()
            raise _Cut("the file has changed on the server")
        progress.reset(task, total=version.total, completed=have)
        _receive(response, part, have, version.total, progress, task)


@contextmanager
def _answer(request: urllib.request.Request, part: _Part) -> Iterator[Any]:
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == RANGE_NOT_SATISFIABLE:
            part.drop()
        if error.code in PASSING | {RANGE_NOT_SATISFIABLE}:
            raise _Cut(f"the server answered {error.code} {error.reason}") from None
        raise FedMomError(
            f"{request.full_url} could not be fetched: the server answered {error.code}"
            f" {error.reason}. {_by_hand(part)}"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(_reason(error)) from None
    with response:
        yield response


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https, and from plain http to itself, and to nothing else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith(("https:", f"{req.type}:")):
            fp.close()
            raise FedMomError(
                f"{req.full_url} could not be fetched: the server redirects to {newurl}, which is"
                " not https: anyone on the way could change the file. Fetch it by hand from a"
                " place you trust."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _goes_on(response: Any, known: _Version | None, now: _Version, have: int) -> bool:
    """Return whether a partial answer is the rest of the very file the part is of."""
    return (
        known is not None
        and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        and now.validator in (None, known.validator)  # it may be left out of such an answer
        and (known.total is None or now.total == known.total)
    )


def _receive(
    response: Any, part: _Part, have: int, total: int | None, progress: "Progress", task: "TaskID"
) -> None:
    with part.path.open("ab") as file:
        while total is None or have < total:
            chunk = _read(response, CHUNK if total is None else min(CHUNK, total - have))
            if not chunk:
                break
            file.write(chunk)
            have += len(chunk)
            progress.advance(task, len(chunk))
    if total is not None and have < total:
        raise _Cut(f"the connection was cut after {have:,} of {total:,} bytes")


def _read(response: Any, size: int) -> bytes:
    try:
        # What is there now, not a full chunk: a cut or Ctrl-C then loses nothing.
        return bytes(response.read1(size))
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(_reason(error)) from None


def _validator(headers: Mapping[str, str]) -> str | None:
    etag = headers.get("ETag", "")
    # A weak ETag does not promise equal bytes, and may not be used to resume.
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _total(response: Any) -> int | None:
    """Return the length of the whole file, where the server tells it."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        length = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", None) or error
    return str(getattr(inner, "strerror", None) or inner) or type(inner).__name__


def _by_hand(part: _Part) -> str:
    return f"Or fetch it by hand, with a browser for instance, and put it at {part.target}."


def _mismatch(path: Path, checksums: Mapping[Algorithm, str]) -> str | None:
    """Say which checksum is wrong, if one is."""
    for algorithm, expected in checksums.items():
        if (actual := checksum(path, algorithm)) != expected:
            return f"its {algorithm} is {actual}, not {expected}"
    return None


@contextmanager
def _bar(label: str) -> Iterator[tuple["Progress", "TaskID"]]:
    """Show how many bytes there are, how fast they come and how long it will still take."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from fedmom.core.progress import bars

    with bars(None, DownloadColumn(), TransferSpeedColumn()) as progress:
        yield progress, progress.add_task(label, total=None)
