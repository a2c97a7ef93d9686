"""Errors a user can act on. The command line prints their message alone, without a traceback."""

from __future__ import annotations


class MixfluenceError(Exception):
    """Base of every error whose message tells the user what to change."""


class RecipeError(MixfluenceError):
    """A recipe names something that does not exist, is misspelt or contradicts itself."""


class DataError(MixfluenceError):
    """A data file is missing, damaged or does not say what its format promises."""
