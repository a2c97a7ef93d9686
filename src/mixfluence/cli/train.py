"""`mixfluence train`."""

from __future__ import annotations

import os
from signal import SIGINT
from typing import Annotated, NoReturn

import typer

from mixfluence.cli.signals import StopSignals, leave
from mixfluence.cli.terminal import errors, output, prepare, print_line


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with mixfluence.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes, such as training.steps=100.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
) -> None:
    """Train and test as a recipe says."""
    with StopSignals(_leave) as signals:
        try:
            _train(recipe, overrides or [], resume, signals)
        except KeyboardInterrupt as stop:
            number = stop.args[0] if stop.args else SIGINT
            if farewell := _farewell(number):
                errors.print(farewell, style="red")
            raise typer.Exit(128 + number) from stop
        except Exception:
            # A worker or another process that the same signal has ended was needed to go on.
            if signals.received is None:
                raise
            _leave(signals.received)


def _train(recipe: str, overrides: list[str], resume: bool, signals: StopSignals) -> None:
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    parsed = load_recipe(find_recipe(recipe), overrides)
    prepare(verbose=_first_process())
    from mixfluence.experiment import run
    from mixfluence.report.tables import score_table
    from mixfluence.training.display import ProgressDisplay
    from mixfluence.training.stopping import StopOnRequest

    display = ProgressDisplay(errors, parsed.name)
    scores = run(parsed, resume=resume, show_progress=errors.is_terminal, callbacks=[display, StopOnRequest(signals)])
    if scores:
        print_line("NDCG@10:")
        output.print(score_table({parsed.name: scores}))
    if _first_process():
        print_line(f"run folder: {parsed.output}")


def _leave(number: int) -> NoReturn:
    leave(128 + number, _farewell(number))


def _farewell(number: int) -> str | None:
    reason = "interrupted" if number == SIGINT else "terminated"
    return f"{reason}; the same command with --resume goes on from the last checkpoint" if _first_process() else None


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
