"""Samplers are labelled as in papers; labels of runs are unique."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixfluence.report.summary import method_of
from mixfluence.runs import group_by_seed, run_labels
from tests.report.test_compare import made_run, untrained


@pytest.mark.parametrize(
    ("strategy", "sampler", "initial"),
    [
        ({"name": "static", "init": "uniform"}, "Static", "uniform"),
        ({"name": "static", "init": {"temperature": 0.3}}, "Static", "τ=0.3"),
        ({"name": "static", "init": {"file": Path("w/learned.json")}}, "Static", "from learned.json"),
        ({"name": "static", "init": {"weights": {"nq": 1.0}}}, "Static", "given weights"),
        ({"name": "cooldown"}, "Cooldown", "τ=5→1"),
        ({"name": "inf-dds"}, "Inf-DDS", "uniform"),
        ({"name": "inf-dds", "init": "proportional"}, "Inf-DDS", "τ=1"),
        ({"name": "doremi"}, "DoReMi", "proxy, τ=1"),
        ({"name": "doge"}, "DoGE", "proxy, uniform"),
        ({"name": "crisp", "levels": 2}, "CRISP-1024", "clusters"),
        ({"name": "odm"}, "ODM", "uniform"),
        ({"name": "merge", "start_share": 0.3}, "Merge", "experts, 0.3 start"),
        ({"name": "merge", "soup": True}, "Soup", "experts"),
        ({"name": "regmix"}, "RegMix", "proxies, uniform"),
        ({"name": "chameleon"}, "Chameleon", "unique"),
        ({"name": "replay", "run": Path("runs/x")}, "Replay", "average of x"),
    ],
)
def test_methods_are_labelled_as_in_papers(strategy: Any, sampler: str, initial: str) -> None:
    (group,) = group_by_seed([made_run("x", strategy=strategy)])
    assert method_of(group) == (sampler, initial)


def test_a_model_that_was_only_tested_has_its_own_name() -> None:
    groups = group_by_seed([untrained("a"), untrained("b", "zero-shot")])
    assert [method_of(group) for group in groups] == [("BM25", "-"), ("zero-shot", "-")]


def test_labels_tell_runs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_labels([Path("runs/a"), Path("runs/b/"), Path()]) == ["a", "b", tmp_path.name]
    assert run_labels([Path("x/a"), Path("y/a")]) == ["x/a", "y/a"]
    assert run_labels([Path("runs/a"), Path("/sweep/uniform/0")]) == ["a", "uniform/0"]
    assert run_labels([Path("x/uniform/0"), Path("y/uniform/0")]) == ["x/uniform/0", "y/uniform/0"]
    assert run_labels([Path("x/uniform/0"), Path("y/uniform")]) == ["x/uniform/0", "y/uniform"]


def test_seeds_in_one_folder_have_its_name_together() -> None:
    seeds = [replace(made_run("x", seed=seed), path=Path(f"runs/uniform/{seed}")) for seed in range(2)]
    (sweep,) = group_by_seed(seeds)
    assert (sweep.label, sweep.labels) == ("uniform", ("uniform/0", "uniform/1"))
    assert group_by_seed(seeds[:1])[0].label == "uniform/0"
    (named,) = group_by_seed([made_run("first", seed=0), made_run("second", seed=1)])
    assert named.label == "first"
