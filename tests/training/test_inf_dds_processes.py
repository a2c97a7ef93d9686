"""Influence on several processes, really started.

- Two processes end with the same weights and the same logits, although each looks at the dev set for itself.
- With half the batch each they train, probe and follow their probes as one process with the whole batch does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mixfluence.run_folder import read_trace
from tests.training.inf_dds_process_run import main

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_probe_as_one_process_does(tiny_bert_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    words = [*launcher, "--rdzv-endpoint=localhost:0", "-m", "tests.training.inf_dds_process_run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*words, str(tiny_bert_folder), str(tmp_path / "two")], env=environment, cwd=ROOT, check=True, timeout=300
    )
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
