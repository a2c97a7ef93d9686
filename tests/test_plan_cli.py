"""`mixfluence plan` and `mixfluence status` as programs: exit codes, the right stream."""

from __future__ import annotations

import re
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
    # 80 and 20 training rows, drawn evenly for 12 steps of 8.
    assert ["big", "80", "50.0%", "0.60"] in lines
    assert ["small", "20", "50.0%", "2.40"] in lines
    assert re.search(r"^big: 80 rows, .*; tokens: anchor \d+ \(up to \d+\), positive \d+", result.stdout, re.MULTILINE)
    assert "no update happens in the 12 steps of the final stage" in result.stdout
    assert not (tmp_path / "run").exists()


def test_a_recipe_is_planned_without_its_data(tmp_path: Path) -> None:
    one = "dev={covidqa: {published: {rows: 1000}}}"
    result = mixfluence_here("plan", "english13-inf-dds", one, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    # 13 steps, and 14 dev evaluations of 128 rows, a third of a step each; 5 updates fit a quarter of 400 steps.
    assert "5 updates from step 25 on, each 17.7 training steps (+22%)" in result.stdout
    refused = mixfluence_here("plan", "english13-inf-dds", "dev=[covidqa]", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "dev.covidqa: data/english/covidqa dev: no such file or folder" in refused.stderr


def test_a_recipe_is_planned_for_several_processes(tmp_path: Path) -> None:
    result = mixfluence_here("plan", "mldr13-inf-dds", "--processes", "8", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("mldr13-inf-dds on 8 processes: ")
    lines = [line.split() for line in result.stdout.splitlines()]
    # 10,000 steps of 40 rows, 4 of 340 for German.
    assert ["de", "1,847", "1.2%", "2.55"] in lines
    # One language on each, 3 steps of 4 rows for 5, and two dev evaluations of 13 x 32 rows: 2.4 + 2 x 83.2 / 3.
    assert "38 updates from step 500 on, each 57.9 training steps (+22%)" in result.stdout


def test_status_shows_a_run_and_refuses_other_folders(recipe_path: Path, tmp_path: Path) -> None:
    assert mixfluence_here("train", str(recipe_path), "test={}", "selection=null", folder=tmp_path).returncode == 0
    result = mixfluence_here("status", "run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tiny: static, finished" in result.stdout
    assert "12 of 12 (100%)" in result.stdout
    refused = mixfluence_here("status", "data", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: data: not a run folder, it has no recipe.yaml, which a run writes before")
