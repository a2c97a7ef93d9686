"""What all verbs share: results go to standard output, everything else to standard error; options and files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mixfluence.errors import RecipeError
from mixfluence.files import write_text

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe

output = Console()
errors = Console(stderr=True)


class Measure(StrEnum):
    """Measures that a table can show."""

    NDCG = "ndcg@10"
    MRR = "mrr@10"
    RECALL = "recall@100"
    MAP = "map@100"


RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with mixfluence.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes, such as training.steps=100.")
]
MeasureOption = Annotated[Measure, typer.Option(help="Measure to show.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of the terminal.")
]


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage(), "yellow" if record.levelno >= logging.WARNING else "dim")


def print_line(text: str) -> None:
    """Print a line of the result without interpreting markup in it."""
    output.print(text, markup=False, highlight=False, soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """Print a line to standard error without interpreting markup in it."""
    errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def prepare(verbose: bool = True) -> None:
    """Show the log of mixfluence and silence that of the libraries; call it before they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not errors.is_terminal:
        os.environ.setdefault("TQDM_DISABLE", "1")
    ours = logging.getLogger("mixfluence")
    ours.setLevel(logging.INFO if verbose else logging.WARNING)
    ours.handlers = [_Notes()]
    ours.propagate = False
    from datasets import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    disable_progress_bars()
    transformers_logging.disable_progress_bar()


def read_recipe(name: str, overrides: Sequence[str] | None = None, *, files_may_be_missing: bool = False) -> Recipe:
    """Load the recipe that a user named, with the overrides of the command line."""
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    return load_recipe(find_recipe(name), overrides or [], files_may_be_missing=files_may_be_missing)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Name the file that the user named in errors of writing, not its temporary copy."""
    try:
        yield
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written ({error.strerror})") from error
    except UnicodeEncodeError as error:
        # The name of a folder may contain any bytes.
        raise RecipeError(f"{path}: cannot be written (a name in it is not UTF-8)") from error


def write_result(path: Path, text: str) -> None:
    """Write a file of results and print its name."""
    with writing_to(path):
        write_text(path, text)
    tell_written(path)


def tell_written(path: Path) -> None:
    """Print the name of a file that was written."""
    note(f"wrote {path}")
