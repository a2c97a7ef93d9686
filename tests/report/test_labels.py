"""Samplers are called as papers call them, and no two runs or pools look like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixfluence.report.labels import guides, initial_label, pool_labels, run_labels, sampler_label
from tests.report.test_comparison import made_run


@pytest.mark.parametrize(
    ("strategy", "sampler", "initial", "dev"),
    [
        ({"name": "static", "init": "uniform"}, "Static", "τ=∞", ()),
        ({"name": "static", "init": {"temperature": 0.3}}, "Static", "τ=0.3", ()),
        ({"name": "static", "init": {"file": Path("w/learned.json")}}, "Static", "from learned.json", ()),
        ({"name": "static", "init": {"weights": {"nq": 1.0}}}, "Static", "given weights", ()),
        ({"name": "cooldown"}, "Cooldown", "τ=5→1", ()),
        ({"name": "inf-dds"}, "Inf-DDS", "τ=1", ("msmarco", "nq")),
        ({"name": "doremi"}, "DoReMi", "proxy, τ=1", ()),
        ({"name": "doge"}, "DoGE", "proxy, τ=∞", ("msmarco", "nq")),
        ({"name": "crisp", "levels": 2}, "CRISP-1024", "clusters", ("msmarco", "nq")),
        ({"name": "replay", "run": Path("runs/x")}, "Replay", "average of x", ()),
    ],
)
def test_methods_are_called_as_papers_do(strategy: Any, sampler: str, initial: str, dev: tuple[str, ...]) -> None:
    run = made_run("x", strategy=strategy)
    assert (sampler_label(run.recipe), initial_label(run.recipe)) == (sampler, initial)
    assert guides(run.recipe) == dev


def test_labels_tell_runs_and_pools_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_labels([Path("runs/a"), Path("runs/b/"), Path()]) == ["a", "b", tmp_path.name]
    assert run_labels([Path("x/a"), Path("y/a")]) == ["x/a", "y/a"]
    seven = tuple(f"dataset-{number}" for number in range(7))
    other = (*seven[:6], "another")
    assert pool_labels([("a", "b"), (), seven, seven]) == ["a, b", "-", "7 sets", "7 sets"]
    assert pool_labels([seven, other, seven[:3]]) == ["7 sets (a)", "7 sets (b)", "3 sets"]
