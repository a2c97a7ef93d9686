"""Tests a model without training it, as one run of a study: the process that `Cell.command` starts."""

from __future__ import annotations

import sys

import mixfluence
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from mixfluence.runs import write_test

BM25 = "bm25"


def main() -> None:
    """Test the recipe in a file; the second argument is the reference, such as `zero-shot` or `bm25`."""
    recipe, reference = sys.argv[1:]
    test_untrained(load_recipe(recipe), reference)


def test_untrained(recipe: Recipe, reference: str) -> None:
    """Test a recipe's model as it is, or BM25, and write the result as a run folder."""
    tasks = {name: mixfluence.read_task(name, source) for name, source in recipe.test.items()}
    if reference == BM25:
        scores = {name: mixfluence.evaluate_bm25(task) for name, task in tasks.items()}
    else:
        model, size = mixfluence.load_encoder(**recipe.model.model_dump()), recipe.evaluation.batch_size
        scores = {name: mixfluence.evaluate(model, task, batch_size=size) for name, task in tasks.items()}
    write_test(recipe.output, recipe, reference, tasks, scores)
