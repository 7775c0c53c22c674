"""Files that are written whole or not at all, a lock on a folder, and where caches live.

A folder may come from a stranger. So what is in it is opened without following links, and only if
it is an ordinary file of a size that can be read.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_memory

LOCK = ".lock"
_THREAD = threading.local()
LINES_IN_MEMORY = 8  # bytes for one in the file, once they are Python objects
LARGEST = 2**24  # bytes of a file of facts, or of a line of a log: FedMom writes no larger ones
LARGEST_TOML = 2**16  # bytes: reading a name of many dots takes their number squared
# Windows has none of the last three; there, what a path is was looked at just before.
SAFELY = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
LONGEST = 160  # letters of a path that are shown
REMEDIES = {
    errno.ENOSPC: "Free some space, then resume.",
    errno.EDQUOT: "Free some space, then resume.",
    errno.EACCES: "Choose a place that you can write to, or change its permissions.",
    errno.EPERM: "Choose a place that you can write to, or change its permissions.",
    errno.EROFS: "Choose a writable place.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOTDIR: "A part of this path is a file; choose another.",
    errno.EEXIST: "Choose another name.",
    errno.EISDIR: "Name a file, not a folder.",
    errno.ENOENT: "Check the path.",
    errno.EMFILE: "Allow more open files (ulimit -n).",
}
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def open_file(path: Path, mode: Literal["rb", "ab"] = "rb") -> BinaryIO:
    """Open an ordinary file to read it, or to add to it. A link is not followed.

    A file that has other names (hard links) is copied before it is added to: they keep theirs.

    Raises:
        FedMomError: It is a link, a pipe, a device or a folder.
    """
    flags = os.O_RDONLY if mode == "rb" else os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with naming(path, missing_ok=mode == "rb"):
        _check_place(path)
        # By its name and not its number, so that what is mapped into memory knows its file.
        file = open(  # noqa: SIM115
            str(path), mode, opener=lambda name, _: os.open(name, flags | SAFELY, 0o666)
        )
    try:
        status = os.fstat(file.fileno())
        _check_ordinary(path, status.st_mode)
    except FedMomError:
        file.close()
        raise
    if mode == "rb" or status.st_nlink <= 1:
        return file
    file.close()
    write_atomic(path, read_file(path, most=None))
    return open_file(path, mode)


def _check_place(path: Path) -> None:
    """Refuse to open what is no ordinary file."""
    with contextlib.suppress(FileNotFoundError):
        _check_ordinary(path, path.lstat().st_mode)


def _check_ordinary(path: Path, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise FedMomError(
            f"{path} is a link, and links in a folder are not followed. Put the file in its place."
        )
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "a device")
        raise FedMomError(f"{path} is {kind}, not a file. Restore the file from a copy.")


def read_file(path: Path, most: int | None = LARGEST) -> bytes:
    """Return the content of an ordinary file.

    Args:
        path: The file.
        most: How many bytes it may have; None: as many as this machine has memory for.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise FedMomError(f"{path} has {size:,} bytes. It must have at most {most:,}.")
        check_memory(str(path), size, "Restore the file from a copy.")
        with naming(path):
            return file.read(size)


def sha256(path: Path) -> str:
    """Return the checksum of an ordinary file, without holding its content."""
    digest = hashlib.sha256()
    with open_file(path) as file, naming(path):
        while part := file.read(LARGEST):
            digest.update(part)
    return digest.hexdigest()


def read_named(path: Path, what: str, most: int) -> bytes:
    """Return the content of a file that the user names, which may be a link or a pipe.

    Args:
        path: The file.
        what: What it must be, for the message if it is too long for that.
        most: How many bytes it may have.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FedMomError(f"{path} is not {what}: it has more than {most:,} bytes.")
    return content


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an ordinary file, with their ends."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_memory(str(path), LINES_IN_MEMORY * size, "Restore the file from a copy.")
        for number in itertools.count(1):
            line = file.readline(LARGEST + 1)
            if len(line) > LARGEST:
                raise FedMomError(
                    f"{path}, line {number} has more than {LARGEST:,} bytes. Restore the file from"
                    " a copy."
                )
            if not line:
                return
            yield line


def inner_folder(path: Path) -> Path:
    """Return a folder that lies in another one, or may; a link in its place is refused."""
    if path.is_symlink():
        raise FedMomError(
            f"{path} is a link, and links in a folder are not followed. Put the folder in its"
            " place."
        )
    if path.exists() and not path.is_dir():
        raise FedMomError(f"{path} is not a folder. Restore the folder from a copy.")
    return path


def write_atomic(path: Path, *content: bytes | memoryview) -> None:
    """Write a file whole or not at all, also through a crash of the machine.

    Args:
        path: The file.
        *content: What it holds, in parts.
    """
    temporary = temporary_name(path)
    try:
        with naming(path, instead=temporary):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY
            with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
                _write_synced(file, *content)
            temporary.replace(path)
    except BaseException:  # a full disk, Ctrl-C: half a file helps nobody
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself must reach the disk, too
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def temporary_name(path: Path) -> Path:
    """Return a name next to a file that nobody can guess, and have put a link at."""
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def remove_abandoned(folder: Path) -> None:
    """Remove what kills have left in a folder that nobody else writes to now."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\.[0-9a-f]{16}\.tmp", path.name) and not path.is_dir():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path, instead: Path | None = None, *, missing_ok: bool = False) -> Iterator[None]:
    """Make a sentence of the system's refusals, with the path: a full disk names none.

    Args:
        path: The path.
        instead: A path that the user does not know, and that is replaced.
        missing_ok: Let ``FileNotFoundError`` pass, for the caller to decide.

    Examples:
        >>> with naming(Path("log.txt")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: log.txt: No space left on device. Free some space, then \
resume.
    """
    try:
        yield
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            raise
        known = error.filename not in (None, instead and str(instead))
        raise FedMomError(of_system(error, None if known else path)) from error


def of_system(error: OSError, path: Path | None = None) -> str:
    """Return what the system refuses as a sentence, with the path where there is one."""
    place = path or error.filename
    reason = error.strerror or str(error).partition("\n")[0].removesuffix(".")
    remedy = REMEDIES.get(error.errno or 0, "")
    if place is None:
        return f"The system refused: {reason or type(error).__name__}. {remedy}".strip()
    text, half = os.fsdecode(place), LONGEST // 2
    shown = text if len(text) <= LONGEST else f"{text[:half]}...{text[-half:]}"
    return f"{shown}: {reason}. {remedy}".strip()


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it is there."""
    with naming(path):
        path.mkdir(parents=True, exist_ok=True)


def parse_json(content: bytes | str) -> Any:
    """Return what JSON means. All that is none is a ``ValueError``, brackets without end too.

    Examples:
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ValueError: it is nested too deep
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def remove_file(path: Path) -> None:
    """Remove a file, or a link, if it is there."""
    with naming(path):
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make sure that what was appended to a file has reached the disk."""
    with contextlib.suppress(FileNotFoundError), open_file(path) as file, naming(path):
        os.fsync(file.fileno())


def append(path: Path, content: bytes) -> None:
    """Add to a file."""
    with naming(path), open_file(path, "ab") as file:
        file.write(content)


def append_synced(path: Path, content: bytes) -> None:
    """Add to a file, and return when that has reached the disk."""
    with naming(path), open_file(path, "ab") as file:
        _write_synced(file, content)


def _write_synced(file: BinaryIO, *content: bytes | memoryview) -> None:
    for part in content:
        file.write(part)
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes and threads out of a folder, until the process or the block ends."""
    from filelock import FileLock, Timeout

    path, place, mine = folder / LOCK, folder.resolve(), _claims()
    if place in mine:  # it is locked, for this
        mine.remove(place)
        try:
            yield
        finally:
            mine.add(place)
        return
    with naming(path):
        _check_place(path)
        try:
            held = FileLock(path).acquire(timeout=0)
        except Timeout:
            raise FedMomError(f"Another process is at work in {folder}.") from None
    with held:
        yield


@contextlib.contextmanager
def claimed(folder: Path, check: Callable[[Path], None]) -> Iterator[None]:
    """Make a folder and lock it: of all who start in it at the same time, one has it.

    The thread that has it may lock it once more.

    Args:
        folder: The folder.
        check: Refuses a folder that is in use.
    """
    check(folder)
    make_folder(folder)
    with locked(folder):
        check(folder)  # again: another may have come first
        mine, place = _claims(), folder.resolve()
        mine.add(place)
        try:
            yield
        finally:
            mine.discard(place)


def _claims() -> set[Path]:
    """Return the folders that this thread has claimed."""
    found: set[Path] = _THREAD.__dict__.setdefault("claims", set())
    return found


def user_path(given: str | Path, what: str) -> Path:
    """Return the path that a user has written, with ~ filled in.

    Args:
        given: What was written.
        what: Where, such as "--data", for the message.
    """
    text = str(given)
    if not text:
        raise FedMomError(f"{what} is empty. Give a path; . is the current folder.")
    if "\0" in text:
        raise FedMomError(f"{what} {text!r} is not a path: it contains a null character.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise FedMomError(
            f"{what} {text!r} is not a path: it contains half a character (a lone surrogate)."
        ) from None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise FedMomError(
            f"{what} {text!r}: there is no such user on this machine. Write the path without ~."
        ) from None


def user_place(given: str | Path, what: str) -> Path:
    """Return a path as ``user_path``; refuse one that is too long, or that may not be looked at."""
    path = user_path(given, what)
    with naming(path):
        path.exists()
    return path


def check_file(path: Path, what: str, example: str) -> None:
    """Refuse a place where no file can be, before the work is done.

    Args:
        path: The place.
        what: As for ``user_path``.
        example: A file's name, for the message.
    """
    if path.is_dir():
        raise FedMomError(f"{what} {path} is a folder. Name a file in it, such as {example}.")


def cache_folder() -> Path:
    """Where prepared datasets and compiled programs are kept.

    $FEDMOM_CACHE if it is set, else the system's cache folder for this user.
    """
    if chosen := os.environ.get("FEDMOM_CACHE"):
        return user_path(chosen, "FEDMOM_CACHE")
    from platformdirs import user_cache_path

    return user_cache_path("fedmom", appauthor=False)


def slug(text: str, keep: str = "-_.", other: str = "-") -> str:
    """Return a text that can name a file.

    Examples:
        >>> slug("synthetic:alpha=1")
        'synthetic-alpha-1'
    """
    return "".join(c if c.isalnum() or c in keep else other for c in text)


def free_folder(name: str) -> Path:
    """Return a folder below ``runs`` that is not there yet."""
    stem = slug(Path(name).name)
    number = 1
    while (folder := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


@contextlib.contextmanager
def removed_if_refused(remove: Callable[[], None]) -> Iterator[None]:
    """Remove a new folder if its run fails before it began: the same name can be given again.

    Not at Ctrl-C, after which the user is told how to resume it.
    """
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError, FedMomError):  # what went wrong first is what to tell
            remove()
        raise
