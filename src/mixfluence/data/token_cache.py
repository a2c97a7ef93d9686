"""Cached folders of token ids: built once, by all cores of one process, then opened by others and by later runs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import torch
import xxhash
from torch.utils.data import DataLoader

from mixfluence.data.rows import cache_root

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

# Fewer are not worth the start of a worker.
CHUNKS_PER_WORKER = 2
BUILDING = "building-"
# A process that is still building has written something since.
ABANDONED_AFTER_SECONDS = 86_400.0
DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError)
Chunk = TypeVar("Chunk")
Opened = TypeVar("Opened")


def cached(key: str, open_folder: Callable[[Path], Opened], build: Callable[[Path], object]) -> tuple[Opened, bool]:
    """Return the content of a cached folder, and whether it was built by this call.

    A folder is either complete or missing; one that cannot be read is built again.

    Args:
        key: Everything that the content depends on.
        open_folder: Reads the folder.
        build: Fills an empty folder.
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


def in_parallel(count: int, work: Callable[[int], Chunk]) -> DataLoader[Chunk]:
    """Return the results of `work(0)` to `work(count - 1)` in order, on all cores if there are enough of them."""
    workers = min(os.cpu_count() or 1, count // CHUNKS_PER_WORKER)
    # Always forked: a spawned worker would import everything again, the user's script included.
    parallel = workers > 1 and sys.platform == "linux"
    return DataLoader(
        range(count),  # type: ignore[arg-type]  # has a Dataset's methods
        batch_size=None,
        num_workers=workers if parallel else 0,
        multiprocessing_context="fork" if parallel else None,
        collate_fn=work,  # type: ignore[arg-type]  # called in the workers, with a number
        worker_init_fn=_disable_tokenizer_threads,
        # Its own generator, so that filling the cache does not change the dropout masks of the run.
        generator=torch.Generator(),
    )


def _disable_tokenizer_threads(worker: int) -> None:
    # Threads of the tokenizers library do not survive a fork.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


@contextmanager
def _one_process(file: Path) -> Iterator[None]:
    """Wait for other processes that build the same folder.

    Without locks, as on Windows and some network disks, each process builds it. The lock is the system's own: the
    library filelock would fall back to a lock file, which outlives a killed run on another machine.
    """
    if sys.platform == "win32":
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as handle:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that tokenises the same texts")
                fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Explicitly, because forked workers keep the file open.
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)


def _build(folder: Path, build: Callable[[Path], object]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=BUILDING, dir=folder.parent))
    try:
        build(temporary)
        os.rename(temporary, folder)
    except OSError:
        if not folder.exists():  # without a lock, another process may have finished it first
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _delete_abandoned(root: Path) -> None:
    """Delete unfinished folders of killed processes."""
    for folder in root.glob(f"{BUILDING}*"):
        with suppress(OSError):  # another process may delete it too
            written = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if written < time.time() - ABANDONED_AFTER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
