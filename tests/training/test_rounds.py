"""Rounds of measurements in runs.

- A run that is too short for a round says so before it starts; one that has a round does not.
- A dev set whose queries have few answers is measured in several batches, so that all rows asked for count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from mixfluence.policy import UNIFORM
from mixfluence.runs import read_trace
from mixfluence.strategies import Aioli, DoGE, InfDDS, MultiDDS, Strategy
from tests.training.runs import arguments, build, pool

pytestmark = pytest.mark.slow
OFTEN: dict[str, Any] = {"init": UNIFORM, "update_every": 2, "warmup_steps": 2}


@pytest.mark.parametrize(
    ("strategy", "options", "rounds", "named"),
    [
        pytest.param(InfDDS(), {}, 0, "warmup_steps", id="warm-up of the strategy"),
        pytest.param(InfDDS(**OFTEN), {}, 2, "", id="rounds"),
        pytest.param(InfDDS(**OFTEN), {"max_steps": 2}, 0, "update_every", id="too few steps"),
        pytest.param(InfDDS(**OFTEN), {"max_steps": 3}, 1, "", id="one round"),
        pytest.param(
            InfDDS(**OFTEN, freeze_below=0.9), {"warmup_ratio": 0.9}, 0, "freeze_below", id="warm-up of the rate"
        ),
        pytest.param(InfDDS(**OFTEN, freeze_below=0.9), {"lr_scheduler_type": "constant"}, 2, "", id="constant rate"),
        pytest.param(MultiDDS(), {}, 0, "update_every", id="gradients"),
        pytest.param(DoGE(), {}, 0, "update_every", id="doge"),
        pytest.param(Aioli(), {}, 0, "warmup_steps", id="aioli"),
    ],
)
def test_a_run_without_a_round_warns(
    strategy: Strategy,
    options: dict[str, Any],
    rounds: int,
    named: str,
    make_static: Callable[[], SentenceTransformer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    args = arguments(tmp_path, **options)
    build(make_static(), args, strategy=strategy, dev_dataset={"dev": pool()["near"]}).train()
    assert sum("update" in line for line in read_trace(tmp_path / "trace.jsonl")) == rounds
    warned = [record.getMessage() for record in caplog.records if "no round" in record.getMessage()]
    assert len(warned) == (rounds == 0)
    assert all(named in message for message in warned)


@pytest.mark.parametrize("strategy", [InfDDS(**OFTEN), MultiDDS(**OFTEN)], ids=["probes", "gradients"])
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        pytest.param({"anchor": 60, "positive": 60}, 60, id="own answers"),
        pytest.param({"anchor": 60, "positive": 5}, 60, id="five answers"),
        pytest.param({"anchor": 7, "positive": 60}, 56, id="seven queries"),
        pytest.param({"anchor": 60, "positive": 45}, 45, id="a few equal answers"),
    ],
)
def test_queries_with_few_answers_are_measured_in_several_batches(
    columns: dict[str, int],
    rows: int,
    strategy: Strategy,
    make_static: Callable[[], SentenceTransformer],
    tmp_path: Path,
) -> None:
    texts = {name: [f"w{row % count} {name}" for row in range(60)] for name, count in columns.items()}
    dev = {"dev": Dataset.from_dict(texts)}
    trainer = build(make_static(), arguments(tmp_path), strategy=strategy, dev_dataset=dev)
    trainer.train()
    updates = [line["update"] for line in read_trace(tmp_path / "trace.jsonl") if "update" in line]
    assert updates
    for update in updates:
        assert math.isfinite(update["dev"]["dev"])
        assert update["rows"] == {"dev": rows if isinstance(strategy, InfDDS) else 1}
