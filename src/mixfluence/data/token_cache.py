"""Folders of token ids: made once, by all cores of one process, and opened by the others and by later runs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import torch
import xxhash
from torch.utils.data import DataLoader

from mixfluence.data.rows import cache_root

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

# A worker must earn its start.
CHUNKS_PER_WORKER = 2
BUILDING = "building-"
# Whoever builds writes much more often than that.
ABANDONED_AFTER_SECONDS = 86_400.0
DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError)
Chunk = TypeVar("Chunk", covariant=True)
Opened = TypeVar("Opened")


class Chunks(Sized, Protocol[Chunk]):
    """Work in pieces."""

    def __getitem__(self, number: int) -> Chunk:
        """Return what a piece gives."""


def cached(key: str, open_folder: Callable[[Path], Opened], build: Callable[[Path], object]) -> tuple[Opened, bool]:
    """Return what stands in a folder of the cache, and whether it had to be built first.

    A folder is complete or not there at all; one that cannot be read is built again.

    Args:
        key: Names the folder: everything that its content depends on.
        open_folder: Reads it.
        build: Fills an empty one.
    """
    name = xxhash.xxh3_128_hexdigest(key.encode())
    folder = cache_root() / "tokens" / name
    if folder.exists():
        with suppress(*DAMAGE):
            return open_folder(folder), False
    with _one_process(cache_root() / "locks" / name):
        if folder.exists():
            try:
                return open_folder(folder), False
            except DAMAGE as error:
                logger.warning("%s: damaged, tokenising again (%s)", folder, error)
                shutil.rmtree(folder, ignore_errors=True)
        _build(folder, build)
        return open_folder(folder), True


def in_parallel(chunks: Chunks[Chunk]) -> DataLoader[Chunk]:
    """Work through the chunks in order, on all cores if there are enough of them."""
    workers = min(os.cpu_count() or 1, len(chunks) // CHUNKS_PER_WORKER)
    # Forked whatever the process prefers: a spawned worker imports everything anew, the user's script included.
    parallel = workers > 1 and sys.platform == "linux"
    return DataLoader(
        chunks,  # type: ignore[arg-type]  # has what a Dataset must have
        batch_size=None,
        num_workers=workers if parallel else 0,
        multiprocessing_context="fork" if parallel else None,
        collate_fn=_unchanged,
        worker_init_fn=_one_thread_each,
        # Its own, or a run that fills the cache would draw other dropout masks than one that finds it filled.
        generator=torch.Generator(),
    )


def _unchanged(chunk: Any) -> Any:
    return chunk


def _one_thread_each(worker: int) -> None:
    # Threads of the tokenizers library do not survive a fork.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


@contextmanager
def _one_process(file: Path) -> Iterator[None]:
    """Wait for other processes, which would do the same work; where a disk or a system has no such locks, they do."""
    if sys.platform == "win32":
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as handle:
        with suppress(OSError):
            _lock(handle)
        try:
            yield
        finally:
            # Closing is not enough: forked workers have the file, too.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)


def _lock(handle: IO[str]) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another process, which tokenises the same texts")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _build(folder: Path, build: Callable[[Path], object]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=BUILDING, dir=folder.parent))
    try:
        build(temporary)
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _delete_abandoned(root: Path) -> None:
    """Delete what processes had begun to build when they were ended."""
    for folder in root.glob(f"{BUILDING}*"):
        # Another process may delete it, too.
        with suppress(OSError):
            written = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if written < time.time() - ABANDONED_AFTER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _publish(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError:
        # Without a lock, another process has finished the same first; its files are as good as ours.
        if not folder.exists():
            raise
