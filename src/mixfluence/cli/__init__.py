"""The command line. Heavy packages are imported inside the commands, so that `--help` is fast."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from typer import Option

from mixfluence.cli.recipes import cache, data, plan, recipes
from mixfluence.cli.runs import compare, evaluate, merge, push, report, status, weights
from mixfluence.cli.sweep import adapt, demo, sweep
from mixfluence.cli.terminal import note, print_line, silence_libraries
from mixfluence.cli.train import leave, train
from mixfluence.errors import MixfluenceError

FAILED, BAD_INPUT = 1, 2

app = typer.Typer(
    name="mixfluence",
    epilog="Exit codes: 0 success, 1 unexpected failure, 2 wrong input, 130 interrupted, 143 terminated.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, adapt, plan, train, status, evaluate, compare, report, weights, merge, sweep, push, data, cache):
    app.command()(command)
app.add_typer(recipes, name="recipes")


def _print_version(asked: bool) -> None:
    if asked:
        from mixfluence import __version__

        print_line(f"mixfluence {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Choose, while training, which dataset the next batch comes from."""


def main() -> None:
    """Run the command line; errors of the user or the disk end with one message instead of a traceback."""
    silence_libraries()
    try:
        app()
    except MixfluenceError as error:
        _end(BAD_INPUT, str(error))
    except OSError as error:
        _end(FAILED, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except SystemExit as end:
        _end(end.code if isinstance(end.code, int) else bool(end.code))


def _end(code: int, message: str | None = None) -> NoReturn:
    for line in message.split("\n") if message else []:
        note(f"error: {line}", "red")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # The threads of a process group would abort a slower exit.
        leave(code)
    sys.exit(code)
