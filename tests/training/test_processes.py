"""Several processes, really started. Under torchrun itself: tests/resume/test_processes.py.

- Two processes with half the batch each train what one process trains: negatives cross processes with gradient. The
  random negatives of a cross-encoder are those of its process.
- They draw the same datasets, and end with the same weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixfluence.encoders import Kind
from mixfluence.runs import read_trace
from tests.training.process_run import main
from tests.training.runs import start_processes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "multi-vector", "reranker"])
def test_two_processes_train_what_one_process_trains(tiny_bert_folder: Path, tmp_path: Path, kind: Kind) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    start_processes(main, str(tiny_bert_folder), tmp_path / "one", 8, kind, processes=1)
    start_processes(main, str(tiny_bert_folder), tmp_path / "two", 4, kind, processes=2)
    alone = np.load(tmp_path / "one" / "weights-0.npy")
    shared = [np.load(tmp_path / "two" / f"weights-{rank}.npy") for rank in range(2)]
    assert np.array_equal(*shared)
    if kind != "reranker":
        assert np.abs(shared[0] - alone).max() < 1e-4
    traces = [read_trace(tmp_path / name / "trace.jsonl")[1:] for name in ("one", "two")]
    assert [line["trained"] for line in traces[0]] == [line["trained"] for line in traces[1]]
    assert [line["rows"] for line in traces[0]] == [line["rows"] for line in traces[1]]
