"""Rounds of measurements that are compared with each other.

- Without noise any round agrees with all others; with noise more rows and more rounds agree better.
- A recorded run has the gains of each round and target, and its table has a row for each number of rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from reproduction.rounds import ROWS, agreement, record, table
from tests.reproduction.test_guided import options

__all__ = ["options"]


def test_more_rows_and_rounds_agree_better() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(size=(12, 1))
    exact = [truth + np.zeros((12, 64)) for _ in range(20)]
    noisy = [truth + 8 * random.normal(size=(12, 64)) for _ in range(20)]
    assert agreement(exact, 1, 4, random) == pytest.approx(1)
    few, rows, rounds = (agreement(noisy, count, size, random) for count, size in ((1, 8), (1, 64), (4, 8)))
    assert few < rows - 0.05
    assert few < rounds - 0.05


@pytest.mark.slow
def test_a_run_is_recorded_round_by_round(options: argparse.Namespace, tmp_path: Path) -> None:
    own = {"setting": "languages uniform", "every": 2, "rows": 8, "seed": 0, "out": tmp_path, "steps": 60}
    path = record(argparse.Namespace(**{**vars(options), **own}))
    with np.load(path) as file:
        assert file["targets"].tolist() == ["ar", "de"]
        assert file["0 ar"].shape == (2, 8)
    lines = list(table(path))
    assert sum(line.startswith(f"| {ROWS[0]} |") for line in lines) == 2
