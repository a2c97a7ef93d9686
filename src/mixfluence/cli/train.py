"""`mixfluence train`."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGINT
from typing import Annotated, NoReturn

import typer
from typer import Option

from mixfluence.cli.signals import StopSignals, leave
from mixfluence.cli.terminal import Overrides, RecipeName, errors, output, print_line, read_recipe, show_log


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
        print_line("NDCG@10 × 100:")
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
