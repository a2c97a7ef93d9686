"""The cache on disk: folders of converted rows, token ids, embeddings and clusters, each found by a key."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import xxhash
from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

BUILDING = "building-"
# A process that is still building has written something since.
ABANDONED_AFTER_SECONDS = 86_400.0
# On disks without system locks, the lock is a file that outlives a killed process.
LONGEST_WAIT_SECONDS = 7_200.0
DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError)
Opened = TypeVar("Opened")


def cache_root() -> Path:
    """Return the folder of the cache: `$MIXFLUENCE_CACHE` or a folder in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mixfluence"
    return Path(os.environ.get("MIXFLUENCE_CACHE", default))


def cached(kind: str, key: str, open_folder: Callable[[Path], Opened], build: Callable[[Path], object]) -> Opened:
    """Return the content of a cached folder, which is built if it does not exist or cannot be read.

    The key names everything that the content depends on.
    """
    name = xxhash.xxh3_128_hexdigest(key.encode())
    folder = cache_root() / kind / name
    if folder.exists():
        with suppress(*DAMAGE):
            return open_folder(folder)
    with _one_process(cache_root() / "locks" / name):
        if folder.exists():
            try:
                return open_folder(folder)
            except DAMAGE as error:
                logger.warning("%s: damaged, building it again (%s)", folder, error)
                shutil.rmtree(folder, ignore_errors=True)
        _build(folder, build)
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
            written = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if written < time.time() - ABANDONED_AFTER_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=BUILDING, dir=folder.parent))
    try:
        build(temporary)
        os.rename(temporary, folder)
    except OSError as error:
        if not folder.exists():  # without a lock, another process may have finished it first
            # The error of a full disk has no file name.
            raise OSError(error.errno, os.strerror(error.errno or 0), error.filename or str(folder)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
