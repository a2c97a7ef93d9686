"""Influence on several processes, really started.

- All end with the same weights and the same logits, although each looks at the dev set for itself.
- With a part of the batch each they train as one process with the whole batch does. They share out the three datasets
  to probe, of which a fourth process gets none, and find and follow what one process finds.
- Together they probe as one process with the batch of all, negatives included, and each restores everything bitwise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixfluence.runs import read_trace
from tests.training.inf_dds_process_run import Processes, main
from tests.training.runs import start_processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "how"),
    [(2, "divided"), (2, "together"), pytest.param(4, "divided", marks=pytest.mark.soak)],
)
def test_several_processes_probe_as_one_process_does(
    processes: int, how: Processes, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "several").mkdir()
    start_processes(main, str(tiny_bert_folder), tmp_path / "several", how, processes=processes)
    main(str(tiny_bert_folder), tmp_path / "one", how)

    first, *others = (np.load(tmp_path / "several" / f"process-{rank}.npz") for rank in range(processes))
    alone = np.load(tmp_path / "one" / "process-0.npz")
    for name in ("weights", "logits"):
        assert all(np.array_equal(first[name], other[name]) for other in others), name
    assert np.abs(first["weights"] - alone["weights"]).max() < 1e-4
    assert first["logits"] == pytest.approx(alone["logits"], abs=1e-3)
    assert np.abs(first["logits"]).max() > 0.1

    traces = [read_trace(tmp_path / name / "trace.jsonl")[1:] for name in ("one", "several")]
    assert [line["trained"] for line in traces[0] if "trained" in line] == [
        line["trained"] for line in traces[1] if "trained" in line
    ]
    rounds = [[line["update"] for line in trace if "update" in line] for trace in traces]
    assert len(rounds[0]) == len(rounds[1]) == 3
    for one, two in zip(*rounds, strict=True):
        assert two["influence"] == pytest.approx(one["influence"], abs=1e-4)
        assert two["failed"] == one["failed"] == []
