"""Errors that a user can fix. The command line prints their message without a traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class MixfluenceError(Exception):
    """Base class of errors whose message says what to change."""


class RecipeError(MixfluenceError):
    """A recipe or an argument is misspelt, of the wrong type, contradictory or refers to something missing."""


class DataError(MixfluenceError):
    """A data file is missing, damaged or not in its format."""


@contextmanager
def collecting(problems: list[MixfluenceError]) -> Iterator[None]:
    """Put an error of a block into a list, so that all problems can be reported at once by `refuse`."""
    try:
        yield
    except MixfluenceError as error:
        problems.append(error)


def first_line(error: Exception) -> str:
    """Return what an error of another library says in its first line, or else its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def refuse(problems: Sequence[MixfluenceError]) -> None:
    """Raise collected errors as one, with a line for each."""
    if problems:
        raise type(problems[0])("\n".join(dict.fromkeys(map(str, problems)))) from problems[0]
