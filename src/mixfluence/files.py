"""Atomic writes: after a crash a file is complete or absent. Locks: one process at a time writes a folder."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixfluence.errors import MixfluenceError

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"
_locked: set[Path] = set()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name: process ids are equal in two containers that share a disk.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuse a folder that another living process works in.

    A killed process holds no lock, nor do its orphaned workers: a record lock is not inherited. Without locks, as on
    Windows and some network disks, nothing is refused.
    """
    path = folder.resolve() / LOCK_FILE
    if sys.platform == "win32" or path in _locked:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A link in a folder of somebody else could name any file of ours, which would be emptied.
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise MixfluenceError(f"{path}: cannot be opened as a lock ({error.strerror})") from error
    with open(opened, "r+", encoding="utf-8") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            handle.seek(0)
            raise MixfluenceError(f"{folder}: in use by another process ({handle.read().strip()})") from error
        except OSError:
            pass
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {platform.node()}\n")
        handle.flush()
        _locked.add(path)
        try:
            yield
        finally:
            _locked.discard(path)


def sync_folder(folder: Path) -> list[Path]:
    """Flush a folder and everything in it to disk; return its files in order.

    Whoever may read the folder may read them: safetensors writes files that only their owner can read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        path.chmod(path.stat().st_mode | (folder.stat().st_mode & 0o044))
    for path in [*files, *{path.parent for path in files}]:
        sync(path)
    return files


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
