"""Ctrl-C, SIGTERM and the signals of batch schedulers during training."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from mixfluence.cli.terminal import errors
from mixfluence.training import STOP_SIGNALS


def leave(code: int, message: str | None = None) -> NoReturn:
    """End the program and its child processes at once.

    An exception may not get through: libraries catch everything in places, and `sys.exit` waits for the queue of a
    data loader, forever if a signal interrupted the queue while it held its lock.
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
    """Handles `STOP_SIGNALS` inside a `with` block.

    While `patient` is set, the first signal is only recorded, so that training can finish its step and write a
    checkpoint; `end` is called with the number of any other. `received` is the number of the last signal.
    """

    def __init__(self, end: Callable[[int], NoReturn]) -> None:
        self._end = end
        self.received: int | None = None
        self.patient = False
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A loader's worker that has no handlers yet: only its parent's SIGTERM ends it.
            if number == signal.SIGTERM:
                os._exit(0)
            return
        waits = self.patient and self.received is None
        self.received = number
        if sys.platform != "win32":
            # Torch would raise an error for each worker that the same signal ends.
            signal.signal(signal.SIGCHLD, lambda *_: None)
        if not waits:
            self._end(number)
