"""Real runs of every strategy, tiny, made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mixfluence.experiment import run
from mixfluence.recipe_yaml import load_recipe
from tests.test_experiment import StopAt, write_domain
from tests.test_methods import SETTINGS, chosen


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Path:
    """A folder with one run per method, two more seeds of `static` and `inf-dds`, and one killed half-way.

    Runs are called by their method; further seeds are `static-1`, `inf-dds-1`; the killed one is `killed`. Three
    domains are trained on; one is called like a piece of HTML.
    """
    folder = tmp_path_factory.mktemp("runs-of-every-method")
    _make_runs(folder, tiny_bert_folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker have all tests that need the runs, so that they are made once."""
    for item in items:
        if "runs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("runs"))


def _make_runs(folder: Path, model: Path) -> None:
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
        "training": {"steps": 24, "batch_size": 8, "learning_rate": 1e-3, "log_every": 2},
        "selection": {"every": 8, "dev": "halves"},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    for method in SETTINGS:
        run(load_recipe(path, [chosen(method, model), f"output={folder / method}"]))
    run(load_recipe(path, [f"strategy={{name: replay, run: {folder}/inf-dds}}", f"output={folder}/replay"]))
    for method in ("static", "inf-dds"):
        run(load_recipe(path, [chosen(method, model), "seed=1", f"output={folder}/{method}-1"]))
    with pytest.raises(KeyboardInterrupt):
        run(load_recipe(path, [chosen("inf-dds", model), f"output={folder}/killed"]), callbacks=[StopAt(13)])
