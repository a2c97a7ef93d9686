"""Results in a file that the user named."""

from __future__ import annotations

from pathlib import Path

from mixfluence.atomic import write_text
from mixfluence.cli.terminal import errors
from mixfluence.errors import RecipeError


def write_result(path: Path, text: str) -> None:
    """Write a file of results and say so."""
    try:
        write_text(path, text)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written ({error.strerror})") from error
    errors.print(f"wrote {path}", style="dim", markup=False, highlight=False, soft_wrap=True)
