"""What all commands share: options and output. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from mixfluence.display import SafeConsole, printable
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe

output = SafeConsole()
errors = SafeConsole(stderr=True)
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}

RecipeName = Annotated[str, Argument(help="A recipe file, or the name of one that ships with mixfluence.")]
Overrides = Annotated[list[str] | None, Argument(metavar="KEY=VALUE", help="Changes, such as training.steps=100.")]
Measure = Annotated[Literal["ndcg@10", "mrr@10", "recall@100", "map@100"], Option(help="Measure to show.")]
OutputFile = Annotated[Path | None, Option("--output", "-o", metavar="FILE", help="Write to this file.")]


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage(), "yellow" if record.levelno >= logging.WARNING else "dim")


def print_line(text: str) -> None:
    """Print a line of the result without interpreting markup or control characters in it, such as another line."""
    output.print(printable(text, keep="\t"), markup=False, highlight=False, soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """Print a line to standard error without interpreting markup or control characters in it."""
    errors.print(printable(text, keep="\t"), style=style, markup=False, highlight=False, soft_wrap=True)


def silence_libraries() -> None:
    """Turn off the log and the progress bars of libraries that are not imported yet."""
    for name, value in (QUIET | ({} if errors.is_terminal else {"TQDM_DISABLE": "1"})).items():
        os.environ.setdefault(name, value)


def show_log(verbose: bool = True) -> None:
    """Print the log of mixfluence to standard error."""
    ours = logging.getLogger("mixfluence")
    ours.setLevel(logging.INFO if verbose else logging.WARNING)
    ours.handlers = [_Notes()]
    ours.propagate = False


def read_recipe(name: str, overrides: Sequence[str] | None = None, *, files_may_be_missing: bool = False) -> Recipe:
    """Load the recipe that a user named, with the overrides of the command line."""
    from mixfluence.recipe_yaml import load_recipe

    return load_recipe(name, overrides or [], files_may_be_missing=files_may_be_missing)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report that a path was written, or why it could not be; errors name it and not its temporary copy."""
    try:
        yield
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written ({error.strerror})") from error
    note(f"wrote {path}")
