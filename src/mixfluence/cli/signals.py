"""Ctrl-C and SIGTERM while a run trains."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from mixfluence.cli.terminal import errors

NUMBERS = (signal.SIGINT, signal.SIGTERM)


def interrupt(number: int) -> NoReturn:
    """Raise `KeyboardInterrupt` with a signal's number; `leave` depends on nobody who might catch it."""
    raise KeyboardInterrupt(number)


def leave(code: int, message: str | None = None) -> NoReturn:
    """End the program and the processes that it started, wherever it is.

    An exception has a longer way: libraries have clauses that catch everything, and what cleans up, `sys.exit` too,
    waits for a loader's queue, in vain if a signal has interrupted the queue while it held its lock.
    """
    from multiprocessing import active_children

    try:
        for child in active_children():
            child.kill()
            child.join()
        errors.show_cursor()
        if message:
            errors.print(message, style="red")
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


class StopSignals:
    """Catches the signals that ask a program to end, for as long as the block lasts.

    While `patient` is set a first one is only noted, so that training can end its step and write a checkpoint. From
    the first one on, a child that dies is no error by itself.

    Args:
        end: Called with the number of any other signal.

    Attributes:
        received: The last signal's number; None if there was none.
        patient: Whether a first signal may wait.
    """

    def __init__(self, end: Callable[[int], NoReturn] = interrupt) -> None:
        self._end = end
        self.received: int | None = None
        self.patient = False
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in NUMBERS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            _answer_as_worker(number)
            return
        waits = self.patient and self.received is None
        self.received = number
        if sys.platform != "win32":
            # For each worker that dies of the same signal torch would raise an error, wherever the program is by then.
            signal.signal(signal.SIGCHLD, _do_nothing)
        if not waits:
            self._end(number)


def _answer_as_worker(number: int) -> None:
    """What a loader's worker does before it has handlers of its own: Ctrl-C is for its parent, which sends SIGTERM."""
    if number == signal.SIGTERM:
        os._exit(0)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass
