"""Tests a model without training it, as one run of a study: the process that `Cell.command` starts."""

from __future__ import annotations

import sys
from pathlib import Path

from mixfluence.recipe_yaml import load_recipe
from reproduction.package import run_untrained


def main() -> None:
    """Test the recipe in a file; the second argument is the reference, such as `zero-shot` or `bm25`."""
    recipe, reference = sys.argv[1:]
    run_untrained(load_recipe(Path(recipe)), reference)
