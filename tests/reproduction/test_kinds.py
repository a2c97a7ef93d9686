"""The study of kinds of models: its recipes, the choice of learning rates, and its table."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from mixfluence.recipe_yaml import find_recipe, load_recipe
from reproduction.kinds import HARD_DEV, KINDS, METHODS, RATES, best_rates, final_jobs, rate_jobs, recipe_of, tables


def line(stage: str, method: str, kind: str, seed: int, score: float, **own: Any) -> dict[str, Any]:
    key = {"stage": stage, "method": method, "setting": kind, "seed": seed, "rate": 2e-5}
    return key | {"scores": {"covidqa": score}, "seconds": {"train": 10.0}} | own


@pytest.mark.parametrize("kind", KINDS)
def test_methods_of_a_kind_differ_in_their_sampler_only(tmp_path: Path, kind: str) -> None:
    names = load_recipe(find_recipe("english13"), files_may_be_missing=True).train
    for name in names:
        (tmp_path / "english" / name).mkdir(parents=True)
    options = Namespace(data=tmp_path, model="minilm", steps=40, set=[])
    jobs = {job["method"]: {"rate": 1e-4, **job} for job in final_jobs([kind], 1) if job["method"] in METHODS}
    assert (HARD_DEV in jobs) == (kind == "reranker")
    uniform, guided = (recipe_of(jobs[method], tmp_path, options) for method in ("uniform", "inf-dds"))
    assert (uniform.model.kind, list(uniform.dev), list(uniform.test)) == (kind, ["covidqa"], ["covidqa"])
    assert {*uniform.train} == {*names}
    assert guided.strategy.name == "inf-dds"
    assert guided.model_copy(update={"strategy": uniform.strategy}) == uniform
    for job in rate_jobs([kind]):
        # Rates are chosen without the test set.
        assert not recipe_of(job, tmp_path, options).test
        assert recipe_of(job, tmp_path, options).halves


def test_the_best_rate_is_that_of_dev() -> None:
    scores = dict(zip(RATES, (0.3, 0.5, 0.4), strict=True))
    lines = [line("rates", f"{rate:g}", "sparse", 0, score, rate=rate) for rate, score in scores.items()]
    tested = line("final", "uniform", "sparse", 0, 0.9, rate=RATES[0])
    assert best_rates([*lines, tested]) == {"sparse": RATES[1]}


def test_the_table_compares_runs_of_one_seed() -> None:
    lines = [line("final", "uniform", "sparse", seed, 0.5 + seed / 10) for seed in range(3)]
    spent = {"train": 10.0, "probe": 2.0}
    lines += [line("final", "inf-dds", "sparse", seed, 0.52 + seed / 10, seconds=spent) for seed in range(3)]
    lines += [line("final", "zero-shot", "sparse", 0, 0.1), line("final", "bm25", "sparse", 0, 0.4)]
    found = list(tables(lines))
    (row,) = (row for row in found if row.startswith("| sparse"))
    assert row.startswith("| sparse | 2e-05 | 10.0 | 60.0 ±")
    assert row.endswith("| 2.0 ± 0.0 | 1.20 |")
    assert "| BM25 | | 40.0 | | | | |" in found
