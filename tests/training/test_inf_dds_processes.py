"""Influence on several processes, really started.

- Two processes end with the same weights and the same logits, although each looks at the dev set for itself.
- With half the batch each they train as one process with the whole batch does. They share out the datasets to probe,
  two for the first and one for the second, and find and follow what one process finds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixfluence.run_folder import read_trace
from tests.training.inf_dds_process_run import main
from tests.training.runs import start_processes


@pytest.mark.slow
def test_two_processes_probe_as_one_process_does(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    start_processes("tests.training.inf_dds_process_run", tiny_bert_folder, tmp_path / "two")
    main(str(tiny_bert_folder), tmp_path / "one")

    first, second = (np.load(tmp_path / "two" / f"process-{rank}.npz") for rank in range(2))
    alone = np.load(tmp_path / "one" / "process-0.npz")
    for name in ("weights", "logits"):
        assert np.array_equal(first[name], second[name]), name
    assert np.abs(first["weights"] - alone["weights"]).max() < 1e-4
    assert first["logits"] == pytest.approx(alone["logits"], abs=1e-3)
    assert np.abs(first["logits"]).max() > 0.1

    traces = [read_trace(tmp_path / name / "trace.jsonl")[1:] for name in ("one", "two")]
    assert [line["trained"] for line in traces[0] if "trained" in line] == [
        line["trained"] for line in traces[1] if "trained" in line
    ]
    rounds = [[line["update"] for line in trace if "update" in line] for trace in traces]
    assert len(rounds[0]) == len(rounds[1]) == 3
    for one, two in zip(*rounds, strict=True):
        assert two["influence"] == pytest.approx(one["influence"], abs=1e-4)
        assert two["failed"] == one["failed"] == []
