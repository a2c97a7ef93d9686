"""The command line: one verb a file, heavy imports inside the verbs so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from mixfluence.cli.compare import compare
from mixfluence.cli.demo import demo
from mixfluence.cli.evaluate import evaluate
from mixfluence.cli.plan import plan
from mixfluence.cli.recipes import app as recipes
from mixfluence.cli.report import report
from mixfluence.cli.signals import leave
from mixfluence.cli.status import status
from mixfluence.cli.sweep import sweep
from mixfluence.cli.terminal import errors
from mixfluence.cli.train import train
from mixfluence.cli.weights import weights
from mixfluence.errors import MixfluenceError

FAILED, BAD_INPUT = 1, 2

app = typer.Typer(
    name="mixfluence",
    help="Choose, while training, which dataset the next batch comes from.",
    epilog="Exit codes: 0 done, 1 unexpected failure, 2 wrong input (the message says which), 130 interrupted, "
    "143 terminated.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (demo, plan, train, status, evaluate, compare, report, weights, sweep):
    app.command()(verb)
app.add_typer(recipes, name="recipes")


def main() -> None:
    """Run the command line; a mistake of the user, or of the disk, ends in one message instead of a traceback."""
    try:
        app()
    except MixfluenceError as error:
        _end(BAD_INPUT, str(error))
    except OSError as error:
        _end(FAILED, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except SystemExit as end:
        _end(end.code if isinstance(end.code, int) else bool(end.code))


def _end(code: int, message: str | None = None) -> NoReturn:
    """End the program, the processes of a group at once: threads of the group abort those that take their time."""
    if message:
        errors.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        leave(code)
    sys.exit(code)
