"""Signals that reach the workers of a loader as well as the program that waits for their batches.

- Workers that outlast signals go on loading; their parent can still end them.
- Of others the signal makes an end, which is no error of a program that got it too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mixfluence.cli.signals import StopSignals
from mixfluence.training.stopping import outlast_signals

pytestmark = pytest.mark.slow
TIMEOUT = 60.0
NUMBERS = TensorDataset(torch.arange(64))


def test_a_run_that_was_asked_to_end_does_not_fail_because_its_workers_do() -> None:
    assert exit_code_of(lose_workers, signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_only_their_parent_ends_workers_that_outlast_signals(number: int) -> None:
    assert exit_code_of(keep_workers, number) == 0


def exit_code_of(program: Callable[[Connection], None], number: int) -> int | None:
    """Run a program and send a signal to it and its workers when it is ready; None if it goes on all the same."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=program, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == "ready"
    assert process.pid is not None
    os.killpg(process.pid, number)
    process.join(TIMEOUT)
    code = process.exitcode
    process.kill()
    return code


def lose_workers(ready: Connection) -> None:
    os.setsid()
    with StopSignals() as signals:
        signals.patient = True
        batches = iter(DataLoader(NUMBERS, num_workers=2, multiprocessing_context="fork"))
        assert [next(batches) for _ in range(4)]
        ready.send("ready")
        while multiprocessing.active_children():
            time.sleep(0.01)
        assert signals.received == signal.SIGTERM


def keep_workers(ready: Connection) -> None:
    os.setsid()
    with StopSignals() as signals:
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
