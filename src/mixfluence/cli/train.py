"""`mixfluence train`, and the signals that end it: Ctrl-C, SIGTERM and those of batch schedulers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer import Option

from mixfluence.cli.terminal import Overrides, RecipeName, errors, output, print_line, read_recipe, show_log
from mixfluence.training import STOP_SIGNALS


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    resume: Annotated[bool, Option("--resume", help="Continue from the last checkpoint.")] = False,
) -> None:
    """Train and test a model as described by a recipe."""
    with StopSignals(_leave) as signals:
        try:
            _train(recipe, overrides, resume, signals)
        except KeyboardInterrupt as stop:
            number = stop.args[0] if stop.args else SIGINT
            if message := _stop_message(number):
                errors.print(message, style="red")
            raise typer.Exit(128 + number) from stop
        except Exception:
            # After a signal, errors come from workers or other processes that the same signal ended.
            if signals.received is None:
                raise
            _leave(signals.received)


def _train(recipe: str, overrides: list[str] | None, resume: bool, signals: StopSignals) -> None:
    parsed = read_recipe(recipe, overrides)
    show_log(verbose=_first_process())
    from mixfluence.experiment import run
    from mixfluence.inputs import in_place
    from mixfluence.report.tables import score_table
    from mixfluence.runs import read_run
    from mixfluence.training.callback import StopOnRequest
    from mixfluence.training.display import ProgressDisplay

    if resume:
        parsed = in_place(parsed, Path(recipe))
    display = ProgressDisplay(errors, parsed.name)
    scores = run(parsed, resume=resume, show_progress=errors.is_terminal, callbacks=[display, StopOnRequest(signals)])
    if scores:
        references = read_run(parsed.output).references
        labels = {"zero-shot": "zero-shot", "bm25": "BM25", "fusion": f"{parsed.name} + BM25"}
        rows = {label: references[name] for name, label in labels.items() if name in references}
        output.print(score_table({parsed.name: scores, **rows}))
    if _first_process():
        print_line(f"run folder: {parsed.output}")


def _leave(number: int) -> NoReturn:
    leave(128 + number, _stop_message(number))


def _stop_message(number: int) -> str | None:
    reason = "interrupted" if number == SIGINT else "terminated"
    return f"{reason}; the same command with --resume continues from the last checkpoint" if _first_process() else None


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


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
