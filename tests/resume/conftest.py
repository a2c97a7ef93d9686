"""A run that went through, for each recipe once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.resume.crashes import Run, write_recipe

Whole = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Whole:
    """Returns, for a method and settings, a recipe and the folder of a run of it that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    done: dict[Path, Path] = {}

    def whole(method: str, **settings: Any) -> tuple[Path, Path]:
        recipe = write_recipe(folder, tiny_bert_folder, method, **settings)
        if recipe not in done:
            output = folder / recipe.stem
            run = Run(recipe, output)
            assert run.wait() == 0, run.said
            done[recipe] = output
        return recipe, done[recipe]

    return whole
