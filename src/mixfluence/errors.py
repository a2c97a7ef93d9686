"""Errors that a user can fix. The command line prints their message without a traceback."""

from __future__ import annotations


class MixfluenceError(Exception):
    """Base class of errors whose message says what to change."""


class RecipeError(MixfluenceError):
    """A recipe or an argument is misspelt, of the wrong type, contradictory or refers to something missing."""


class DataError(MixfluenceError):
    """A data file is missing, damaged or not in its format."""
