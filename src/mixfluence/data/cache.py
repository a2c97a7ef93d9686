"""The cache on disk: folders of converted rows, token ids, embeddings and clusters, each found by a key.

A folder appears when it is complete and on disk, with a checksum of every file. Checksums are verified when a process
opens a folder for the first time; a damaged folder is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import xxhash
from filelock import FileLock, Timeout
from pydantic import ByteSize, TypeAdapter, ValidationError

from mixfluence.errors import RecipeError
from mixfluence.files import sync

logger = logging.getLogger(__name__)

BUILDING = "building-"
CHECKSUMS = "checksums.json"
DAY_SECONDS = 86_400.0
# On disks without system locks, the lock is a file that outlives a killed process.
LONGEST_WAIT_SECONDS = 7_200.0
DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError)
Opened = TypeVar("Opened")
_verified: set[Path] = set()


class Entry(NamedTuple):
    """A folder of the cache, or a file that an earlier version has left; `used` is when it was last opened."""

    folder: Path
    size: int
    used: float


def cache_root() -> Path:
    """Return the folder of the cache: `$MIXFLUENCE_CACHE` or a folder in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mixfluence"
    return Path(os.environ.get("MIXFLUENCE_CACHE", default))


def cached(kind: str, key: str, open_folder: Callable[[Path], Opened], build: Callable[[Path], object]) -> Opened:
    """Return the content of a cached folder, which is built if it does not exist or is damaged.

    The key names everything that the content depends on.
    """
    name = xxhash.xxh3_128_hexdigest(key.encode())
    folder = cache_root() / kind / name
    if folder.exists():
        with suppress(*DAMAGE):
            return _open(folder, open_folder)
    with _one_process(cache_root() / "locks" / name):
        if folder.exists():
            try:
                return _open(folder, open_folder)
            except DAMAGE as error:
                logger.warning("%s: damaged, building it again (%s)", folder, error)
                shutil.rmtree(folder, ignore_errors=True)
        _build(folder, build)
        _keep_below_limit()
        return _open(folder, open_folder)


def entries() -> list[Entry]:
    """Return all folders of the cache, the one that was not used for longest first."""
    found = []
    for folder in cache_root().glob("[!l]*/*"):  # all but locks
        with suppress(OSError):  # another process may delete it
            size = sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else folder.stat().st_size
            mark = folder / CHECKSUMS
            found.append(Entry(folder, size, (mark if mark.exists() else folder).stat().st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def delete(entry: Entry) -> None:
    """Delete an entry; it is built again if it is needed."""
    if entry.folder.is_dir():
        shutil.rmtree(entry.folder, ignore_errors=True)
    else:
        entry.folder.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Hash the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _open(folder: Path, open_folder: Callable[[Path], Opened]) -> Opened:
    mark = folder / CHECKSUMS
    if folder not in _verified:
        for name, expected in json.loads(mark.read_text(encoding="utf-8")).items():
            if checksum(folder / name) != expected:
                raise ValueError(f"{name} has changed since it was written")
        _verified.add(folder)
    with suppress(OSError):  # a cache may be read-only
        os.utime(mark)
    return open_folder(folder)


@contextmanager
def _one_process(file: Path) -> Iterator[None]:
    """Wait for another process that builds the same folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    with suppress(Timeout, OSError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that prepares the same data")
            lock.acquire(timeout=LONGEST_WAIT_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, build: Callable[[Path], object]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{BUILDING}*"):  # unfinished folders of killed processes
        with suppress(OSError):  # another process may delete it too
            # A process that is still building has written something since.
            if max(path.stat().st_mtime for path in (left, *left.iterdir())) < time.time() - DAY_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    # A random name: process ids are equal in two containers that share a cache.
    temporary = folder.with_name(f"{BUILDING}{secrets.token_hex(8)}")
    try:
        temporary.mkdir()
        build(temporary)
        sums = {file.name: checksum(file) for file in temporary.iterdir()}
        (temporary / CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        os.rename(temporary, folder)
        sync(folder.parent)
    except OSError as error:
        if not folder.exists():  # without a lock, another process may have finished it first
            # The error of a full disk has no file name.
            raise OSError(error.errno, os.strerror(error.errno or 0), error.filename or str(folder)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _keep_below_limit() -> None:
    """Delete what was not used for longest while the cache exceeds `$MIXFLUENCE_CACHE_LIMIT`."""
    limit = os.environ.get("MIXFLUENCE_CACHE_LIMIT", "")
    if not limit:
        return
    try:
        size = TypeAdapter(ByteSize).validate_python(limit)
    except ValidationError as error:
        raise RecipeError(f"MIXFLUENCE_CACHE_LIMIT: expected a size such as 200GB, found {limit!r}") from error
    everything = entries()
    excess = sum(entry.size for entry in everything) - size
    for entry in everything:
        # What was used within a day may be in use.
        if excess > 0 and entry.used < time.time() - DAY_SECONDS:
            logger.info("%s: deleted, the cache exceeds its limit of %s", entry.folder, limit)
            delete(entry)
            excess -= entry.size
