"""The study of guided samplers, on tiny data.

- Experts, proxies and the runs of a merge count in the seconds of a line; merged models are scored like checkpoints.
- A method that cannot start from the setting's weights has no run there.
- The table gives cost relative to uniform sampling.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from mixfluence.recipe_yaml import find_recipe, load_recipe
from reproduction import guided
from reproduction.schema import FOLDER
from reproduction.workers import Job
from tests.test_experiment import write_domain

METHODS = yaml.safe_load((FOLDER / "guided" / "methods.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def options(tmp_path: Path, tiny_bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Two languages in place of the twin's, and a tiny model."""
    for number, name in enumerate(("ar", "de")):
        write_domain(tmp_path / "multilingual" / name, 60, number)
    recipe = {
        "name": "tiny",
        "model": {"name": str(tiny_bert_folder), "pooling": "cls", "query_length": 8, "passage_length": 16},
        "defaults": {"format": "beir", "path": "{name}"},
        **{key: ["ar", "de"] for key in ("train", "dev", "test")},
        "evaluation": {"references": False},
        "training": {"steps": 6, "batch_size": 8, "learning_rate": 1e-3},
    }
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "twin-mldr13.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    monkeypatch.setattr(guided, "FOLDER", tmp_path)
    return argparse.Namespace(data=tmp_path, model=str(tiny_bert_folder), steps=6, set=[])


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["explore", "final"])
def test_all_runs_of_a_method_count(stage: str, options: argparse.Namespace, tmp_path: Path) -> None:
    job = {"stage": stage, "setting": "languages uniform", "seed": 0}
    uniform = {"name": "static", "init": "uniform"}
    for strategy in {"name": "merge", "evaluations": 8}, {"merge_of": [uniform, uniform]}:
        folder = tmp_path / f"run-{len(strategy)}"
        result = guided.result_of_job({**job, "strategy": strategy}, folder, options)
        assert list(result["scores"]) == ["ar", "de"]
        assert min(result["scores"].values()) > 0
        parts = {part: spent for part, spent in result["seconds"].items() if spent}
        assert parts.keys() >= ({"train", "probe"} if "merge_of" in strategy else {"stages", "probe"})
        assert sum(result["weights"].values()) == pytest.approx(1)


def test_every_method_is_a_sampler_or_a_merge_of_samplers() -> None:
    for strategy in METHODS.values():
        for own in strategy.get(guided.MERGE_OF, [strategy]):
            changes = [f"strategy={json.dumps(own)}"]
            assert (
                load_recipe(find_recipe("english13"), changes, files_may_be_missing=True).strategy.name == own["name"]
            )


def test_a_method_runs_in_the_settings_that_it_can_have() -> None:
    settings = ["joint in", "covidqa in", "covidqa out", "languages uniform", "languages expert"]
    for name, runs in {
        "fair": settings,
        "merge": settings[:4],
        "uniform": ["pool in", *settings[2:]],
        "target-only, at most 10 epochs": [*settings[:2], *settings[3:]],
    }.items():
        assert guided.settings_of(METHODS[name], settings) == runs


def test_costs_are_relative_to_uniform_sampling() -> None:
    def line(method: str, seed: int, **seconds: float) -> Job:
        facts = {"stage": "final", "setting": "joint in", "scores": {"nq": 0.5}}
        return {**facts, "method": method, "seed": seed, "seconds": seconds}

    own = line("merge", 0, train=0, stages=25, probe=5)
    table = guided.tables([line("uniform", 0, train=10, data=90), own, line("merge", 1, train=99)])
    rows = [row for row in table if row.startswith(("| uniform", "| merge"))][:2]
    assert [row.split("|")[-2].strip() for row in rows] == ["1.0", "3.0"]
