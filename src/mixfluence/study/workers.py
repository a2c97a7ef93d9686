"""Cells side by side on one machine: processes that take the next cell when they have done one.

Small encoders leave most of a GPU idle, and several runs at once use it. A cell that fails, or takes its process with
it, is reported and the others go on; its process ends, with whatever the failure left in it. Processes are forked from
one that has imported what a run needs, so that the seconds this takes are spent once.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from mixfluence.errors import MixfluenceError
from mixfluence.study.cell import run_cell
from mixfluence.study.grid import Cell

# One thread each, or processes side by side would wait for each other; no bars, which would write over each other. A
# package that asks for GPUs when it is imported must not start CUDA, which would be of no use to forked processes.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
IMPORTS = "mixfluence.study.imports"

Do = Callable[[Cell], None]


@dataclass
class _Worker:
    process: BaseProcess
    channel: Connection
    cell: Cell


def run_cells(
    cells: Sequence[Cell],
    *,
    processes: int,
    keep_models: bool,
    tell: Callable[[Cell, str | None], None],
    gpus: int = 1,
) -> dict[str, str]:
    """Do what is left of some cells; return the names of those that failed, and why.

    The process that others are forked from stays for later calls: variables that packages read when they are imported
    hold as they were at the first call, all others as they are.

    Args:
        cells: What to do.
        processes: How many at once; one if each has several GPUs, which are the same for all.
        keep_models: See `run_cell`.
        tell: Called after each cell, with the error if it failed.
        gpus: See `run_cell`.
    """
    do = partial(run_cell, keep_models=keep_models, gpus=gpus)
    failed: dict[str, str] = {}
    waiting = list(reversed(cells))
    workers: list[_Worker] = []
    try:
        with _environment(ENVIRONMENT):
            for _ in range(min(processes, len(waiting))):
                workers.append(_start(waiting.pop(), do))
            while workers:
                ready = wait([worker.channel for worker in workers])
                for worker in [worker for worker in workers if worker.channel in ready]:
                    error = _receive(worker)
                    tell(worker.cell, error)
                    if error:
                        failed[worker.cell.name] = error
                    workers.remove(worker)
                    if waiting:
                        workers.append(_go_on(worker, waiting.pop(), do, alive=error is None))
                    else:
                        worker.channel.close()
                        worker.process.join()
    finally:
        # Whoever is left was interrupted with the study.
        for worker in workers:
            worker.process.terminate()
            worker.process.join()
    return failed


def _start(cell: Cell, do: Do) -> _Worker:
    # Elsewhere, libraries of the system may not survive a fork.
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([IMPORTS])
    else:
        context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, do, dict(os.environ)))
    try:
        process.start()
        ours.send(cell)
    except BaseException:
        # Interrupted while the first one waits for imports: when it comes, it finds that nobody has work for it.
        ours.close()
        raise
    finally:
        theirs.close()
    return _Worker(process, ours, cell)


def _go_on(worker: _Worker, cell: Cell, do: Do, *, alive: bool) -> _Worker:
    if not alive:
        return _start(cell, do)
    worker.channel.send(cell)
    return _Worker(worker.process, worker.channel, cell)


def _receive(worker: _Worker) -> str | None:
    """Return why a worker's cell failed, None if it did not."""
    try:
        error: str | None = worker.channel.recv()
    except (EOFError, OSError):
        worker.process.join()
        return f"its process ended with the code {worker.process.exitcode}"
    return error


def _work(channel: Connection, do: Do, environment: Mapping[str, str]) -> None:
    """Run cells until one fails or the other side hangs up."""
    # The study's own process is interrupted too, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    # A loader's workers are started as those of a run by hand.
    multiprocessing.set_start_method(None, force=True)
    logging.getLogger("mixfluence").setLevel(logging.ERROR)
    error = None
    while error is None:
        try:
            cell: Cell = channel.recv()
        except (EOFError, OSError):
            return
        error = _error_of(cell, do)
        channel.send(error)


def _error_of(cell: Cell, do: Do) -> str | None:
    try:
        do(cell)
    except MixfluenceError as error:
        return str(error)
    except Exception as error:
        # Any other failure, too, is one cell's: out of memory, say.
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that processes started in the block inherit."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)
