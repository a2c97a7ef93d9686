"""Recipes built in Python, for tests that read no files."""

from __future__ import annotations

from typing import Any

from mixfluence.recipe import Recipe


def small_recipe(**sections: Any) -> Recipe:
    """Return a recipe of two training sets and a dev set that need not exist."""
    data = {
        "name": "small",
        "model": {"name": "wordllama"},
        "defaults": {"format": "pairs", "path": "data/{name}.jsonl"},
        "train": ["a", "b"],
        "dev": ["a"],
        "training": {"steps": 100, "batch_size": 8},
        **sections,
    }
    return Recipe.model_validate(data, context={"files_may_be_missing": True})
