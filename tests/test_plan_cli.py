"""`mixfluence plan` and `mixfluence status` as programs: exit codes, the right stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import mixfluence, mixfluence_here
from tests.test_experiment import recipe_path

__all__ = ["recipe_path"]

pytestmark = pytest.mark.slow


def test_a_recipe_is_planned_with_its_data(recipe_path: Path, tmp_path: Path) -> None:
    # A process of its own, because libraries print while they are imported.
    result = mixfluence("plan", str(recipe_path), "strategy=inf-dds", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines()]
    # 80 and 20 training rows, drawn by size for 12 steps of 8.
    assert ["big", "80", "80.0%", "0.96"] in lines
    assert ["small", "20", "20.0%", "0.96"] in lines
    assert "no update happens in the 12 steps of the final stage" in result.stdout
    assert not (tmp_path / "run").exists()


def test_a_recipe_is_planned_without_its_data(tmp_path: Path) -> None:
    result = mixfluence_here("plan", "english13-inf-dds", "dev=[covidqa]", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    # (13 x 3 + 14 dev evaluations of 256 rows in batches of 128, a third each) x 7 updates.
    assert "7 updates from step 25 on, each 48.3 training steps (+85%)" in result.stdout
    assert "unknown:" in result.stdout
    assert "--sizes NAME=ROWS" in result.stdout


def test_sizes_can_be_given_and_the_plan_read_by_programs(tmp_path: Path) -> None:
    given = "--sizes=socode=1000,nq=20", "--sizes=dev.covidqa=100"
    result = mixfluence_here("plan", "english13-inf-dds", "dev=[covidqa]", *given, "--json", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    rows = {dataset["name"]: dataset["rows"] for dataset in plan["datasets"]}
    # Other sizes are those in the recipe.
    assert (rows["socode"], rows["nq"], rows["medquad"]) == (1000, 20, 11267)
    assert plan["guides"] == {"covidqa": 50}
    assert plan["memory"] == 7
    assert any("nq: 20 rows do not fill a batch of 128" in concern for concern in plan["concerns"])


def test_a_recipe_is_planned_for_several_processes(tmp_path: Path) -> None:
    result = mixfluence_here("plan", "mldr13-inf-dds", "--processes", "8", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("mldr13-inf-dds on 8 processes: ")
    lines = [line.split() for line in result.stdout.splitlines()]
    # 10,000 steps of 40 rows, 4 of 340 for German.
    assert ["de", "1,847", "1.2%", "2.55"] in lines
    # One language on each, 3 steps of 4 rows for 5, and two dev evaluations of 13 x 32 rows: 2.4 + 2 x 83.2 / 3.
    assert "38 updates from step 500 on, each 57.9 training steps (+22%)" in result.stdout
    given = json.loads(mixfluence_here("plan", "mldr13", "--processes", "8", "--json", folder=tmp_path).stdout)
    assert (given["processes"], given["batch_size"], given["memory"]) == (8, 5, 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "socode"], "error: --sizes 'socode': expected NAME=ROWS, such as fever=109810"),
        (["--sizes", "socode=0"], "'socode=0'"),
        (["--sizes", "soco=5"], "'socode'"),
        (["--calibrate", "5"], "no such file or folder"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    result = mixfluence_here("plan", "english13", *words, folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_calibration_gives_hours_and_leaves_no_files(recipe_path: Path, tmp_path: Path) -> None:
    result = mixfluence_here("plan", str(recipe_path), "strategy=multidds", "--calibrate", "6", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "on this machine" in result.stdout
    assert "s an update" in result.stdout
    assert not (tmp_path / "run").exists()


def test_status_shows_a_run_and_refuses_other_folders(recipe_path: Path, tmp_path: Path) -> None:
    assert mixfluence_here("train", str(recipe_path), "test={}", "selection=null", folder=tmp_path).returncode == 0
    result = mixfluence_here("status", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tiny: static, finished" in result.stdout
    assert "12 of 12 (100%)" in result.stdout
    refused = mixfluence_here("status", "data", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.strip() == "error: data: not a run folder, it has no recipe.yaml"
