"""Tiny runs of every strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mixfluence.experiment import run
from mixfluence.recipe_yaml import load_recipe
from tests.test_experiment import StopAt, write_domain
from tests.test_methods import SETTINGS, chosen


def make_runs(folder: Path, model: Path) -> None:
    """Make one run per method, two more seeds of `static` and `inf-dds`, and one killed half-way.

    Runs are called by their method; further seeds are `static-1`, `inf-dds-1`; the killed one is `killed`. Three
    domains are trained on; one is called like a piece of HTML.
    """
    names = {"big": 120, "small": 60, "<script>alert(1)</script>": 48}
    for number, queries in enumerate(names.values()):
        write_domain(folder / "data" / f"d{number}", queries, number)
    recipe = {
        "name": "tiny",
        "model": {"name": str(model), "pooling": "cls", "query_length": 8, "passage_length": 16},
        "defaults": {"format": "beir"},
        "train": {name: {"path": f"{folder}/data/d{number}"} for number, name in enumerate(names)},
        "dev": {"small": {"path": f"{folder}/data/d1"}, "big": {"path": f"{folder}/data/d0"}},
        "test": {name: {"path": f"{folder}/data/d{number}"} for number, name in enumerate(names)},
        "training": {"steps": 12, "batch_size": 8, "learning_rate": 1e-3, "log_every": 2},
        "selection": {"every": 4, "dev": "halves"},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    for method in SETTINGS:
        run(load_recipe(path, [chosen(method, model), f"output={folder / method}"]))
    run(load_recipe(path, [f"strategy={{name: replay, run: {folder}/inf-dds}}", f"output={folder}/replay"]))
    for method in ("static", "inf-dds"):
        run(load_recipe(path, [chosen(method, model), "seed=1", f"output={folder}/{method}-1"]))
    with pytest.raises(KeyboardInterrupt):
        run(load_recipe(path, [chosen("inf-dds", model), f"output={folder}/killed"]), callbacks=[StopAt(7)])
