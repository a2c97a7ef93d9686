"""Signals that reach the workers of a loader as well as the program that waits for their batches.

- Workers that ignore signals continue to load; their parent can still stop them.
- Other workers exit, which is not an error of a program that received the signal too.
- A program exits with its workers even if code catches everything, or if a queue was interrupted with its lock held.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mixfluence.cli.train import StopSignals, leave
from mixfluence.training.callback import outlast_signals
from tests.resume.crashes import hold_the_lock_of_a_queue

pytestmark = pytest.mark.slow
TIMEOUT = 60.0
NUMBERS = TensorDataset(torch.arange(64))


def test_a_run_that_was_asked_to_end_does_not_fail_because_its_workers_do() -> None:
    assert exit_code_of(lose_workers, signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_only_their_parent_ends_workers_that_outlast_signals(number: int) -> None:
    assert exit_code_of(keep_workers, number) == 0


def test_code_that_catches_everything_does_not_keep_a_program_from_leaving() -> None:
    assert exit_code_of(catch_everything, signal.SIGTERM) == 128 + signal.SIGTERM


def test_a_lock_that_nobody_gives_back_and_workers_that_never_answer_do_not_keep_a_program_from_leaving() -> None:
    assert exit_code_of(lose_a_lock, signal.SIGTERM) == 128 + signal.SIGTERM


def exit_code_of(program: Callable[[Connection], None], number: int) -> int | None:
    """Run a program and send a signal to it and its workers when it is ready; None if one of them goes on."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=program, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == "ready"
    assert process.pid is not None
    os.killpg(process.pid, number)
    process.join(TIMEOUT)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return process.exitcode
    return None


def lose_workers(ready: Connection) -> None:
    os.setsid()
    with StopSignals(leave) as signals:
        signals.patient = True
        batches = iter(DataLoader(NUMBERS, num_workers=2, multiprocessing_context="fork"))
        assert [next(batches) for _ in range(4)]
        ready.send("ready")
        while multiprocessing.active_children():
            time.sleep(0.01)
        assert signals.received == signal.SIGTERM


def keep_workers(ready: Connection) -> None:
    os.setsid()
    with StopSignals(leave) as signals:
        signals.patient = True
        loader = DataLoader(NUMBERS, num_workers=2, worker_init_fn=outlast_signals, multiprocessing_context="fork")
        batches = iter(loader)
        # Both workers have begun.
        assert [next(batches) for _ in range(4)]
        workers = multiprocessing.active_children()
        ready.send("ready")
        while signals.received is None:
            time.sleep(0.01)
        assert [next(batches) for _ in range(40)]
        for worker in workers:
            worker.terminate()
            worker.join(TIMEOUT)
        assert [worker.exitcode for worker in workers] == [0, 0]


def catch_everything(ready: Connection) -> None:
    os.setsid()
    with StopSignals(lambda number: leave(128 + number)):
        ready.send("ready")
        with suppress(BaseException):
            time.sleep(TIMEOUT)


def lose_a_lock(ready: Connection) -> None:
    os.setsid()
    with StopSignals(lambda number: leave(128 + number)):
        loader = DataLoader(NUMBERS, num_workers=2, worker_init_fn=outlast_signals, multiprocessing_context="fork")
        batches = iter(loader)
        assert next(batches)
        hold_the_lock_of_a_queue()
        ready.send("ready")
        time.sleep(TIMEOUT)
