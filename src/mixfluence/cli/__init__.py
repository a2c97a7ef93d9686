"""The command line: one verb a file, heavy imports inside the verbs so that `--help` is quick."""

from __future__ import annotations

import sys

import typer

from mixfluence.cli.compare import compare
from mixfluence.cli.demo import demo
from mixfluence.cli.evaluate import evaluate
from mixfluence.cli.plan import plan
from mixfluence.cli.recipes import app as recipes
from mixfluence.cli.report import report
from mixfluence.cli.status import status
from mixfluence.cli.terminal import errors
from mixfluence.cli.train import train
from mixfluence.cli.weights import weights
from mixfluence.errors import MixfluenceError

BAD_INPUT, INTERRUPTED = 2, 130

app = typer.Typer(
    name="mixfluence",
    help="Choose, while training, which dataset the next batch comes from.",
    epilog="Exit codes: 0 done, 1 unexpected failure, 2 wrong input (the message says which), 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (demo, plan, train, status, evaluate, compare, report, weights):
    app.command()(verb)
app.add_typer(recipes, name="recipes")


def main() -> None:
    """Run the command line; a mistake of the user ends in one message instead of a traceback."""
    try:
        app()
    except MixfluenceError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        errors.print("interrupted", style="red")
        sys.exit(INTERRUPTED)
