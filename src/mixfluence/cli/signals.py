"""Ctrl-C and SIGTERM while a run trains."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Catches the signals that ask a program to end, for as long as the block lasts.

    While `patient` is set a first one is only noted, so that training can end its step and write a checkpoint. Any
    other raises `KeyboardInterrupt` with its number.

    Attributes:
        received: The last signal's number; None if there was none.
        patient: Whether a first signal may wait.
    """

    def __init__(self) -> None:
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
        waits = self.patient and self.received is None
        self.received = number
        if waits:
            return
        if os.getpid() != self._process:
            # A loader's worker. A signal to the whole group reached it too, and its batch was still needed.
            os._exit(128 + number)
        raise KeyboardInterrupt(number)
