"""A run folder reads back as what the run said of itself; one killed half-way reads as far as it came."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mixfluence.report.folders import read_run

from mixfluence.errors import DataError
from tests.test_methods import SETTINGS, STAGES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", [*SETTINGS, "replay"])
def test_a_finished_run_reads_back(runs: Path, method: str) -> None:
    found = read_run(runs / method)
    assert found.finished
    assert found.recipe.strategy.name == method
    assert list(found.scores) == list(found.recipe.test) == list(found.record["tests"])
    for name, evaluation in found.scores.items():
        assert found.record["scores"][name]["ndcg@10"] == pytest.approx(evaluation.mean("ndcg@10"))
        assert found.record["tests"][name]["queries"] == len(evaluation.per_query)
    assert set(found.weights) == set(found.recipe.train)
    assert sum(len(line.get("trained", [])) for line in found.trace) == 24
    assert list(found.stages) == STAGES.get(method, [])


def test_runs_on_the_same_test_sets_have_the_same_fingerprints(runs: Path) -> None:
    one, other = (read_run(runs / name).record["tests"] for name in ("static", "crisp"))
    assert one == other
    assert len({facts["fingerprint"] for facts in one.values()}) == 3


def test_a_run_killed_half_way_reads_as_far_as_it_came(runs: Path) -> None:
    found = read_run(runs / "killed")
    assert not found.finished
    assert (found.scores, found.weights) == ({}, {})
    assert found.trace[-1]["step"] in range(8, 14)


def test_what_is_no_run_or_damaged_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a run folder, it has no recipe\.yaml"):
        read_run(tmp_path)
    with pytest.raises(DataError, match=r"it has no recipe\.yaml$"):
        read_run(tmp_path / "absent")
    copy = tmp_path / "copy"
    shutil.copytree(runs / "static", copy, ignore=shutil.ignore_patterns("checkpoints", "model"))
    (copy / "eval" / "small.jsonl").unlink()
    with pytest.raises(DataError, match="the per-query scores of small are missing"):
        read_run(copy)
    (copy / "record.json").write_text("[1", encoding="utf-8")
    with pytest.raises(DataError, match=r"record\.json: not the record of a run"):
        read_run(copy)


def test_a_folder_of_runs_is_refused_with_some_of_their_names(tmp_path: Path) -> None:
    for name in "badc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").touch()
    (tmp_path / "0-no-run").mkdir()
    with pytest.raises(DataError, match="not a run folder") as refused:
        read_run(tmp_path)
    names = ", ".join(str(tmp_path / name) for name in "abc")
    assert str(refused.value).endswith(f"there are runs in it: {names} ...")
