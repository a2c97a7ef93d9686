"""Results in a file that the user named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixfluence.cli.terminal import errors
from mixfluence.errors import RecipeError
from mixfluence.files import write_text


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Name what the user named in errors of writing, not the temporary file that would have taken its place."""
    try:
        yield
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written ({error.strerror})") from error
    except UnicodeEncodeError as error:
        # A folder may have any bytes as its name.
        raise RecipeError(f"{path}: cannot be written (a name in it is not UTF-8)") from error


def write_result(path: Path, text: str) -> None:
    """Write a file of results and say so."""
    with writing_to(path):
        write_text(path, text)
    tell_written(path)


def tell_written(path: Path) -> None:
    """Say that a file of results is there."""
    errors.print(f"wrote {path}", style="dim", markup=False, highlight=False, soft_wrap=True)
