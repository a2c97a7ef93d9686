"""A loss that is not a number, and states that no run has written.

- The run ends at the next log with one error, and nothing of it reaches the trace.
- Without a log in between, it ends before a checkpoint is written, or at its end.
- A checkpoint whose state was made up is refused with its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from mixfluence.errors import DataError, MixfluenceError
from mixfluence.runs import read_trace
from mixfluence.training.checkpoints import STATE_FILE, seal
from tests.training.runs import arguments, build

pytestmark = pytest.mark.slow


class Exploding(nn.Module):
    """A loss that overflows at its third batch."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model
        self.batches = 0

    def forward(self, features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        self.batches += 1
        value = torch.stack([self.model(column)["sentence_embedding"].sum() for column in features]).sum()
        return value * (torch.inf if self.batches == 3 else 1.0)


def test_a_loss_that_is_not_a_number_ends_the_run(tiny_bert: SentenceTransformer, tmp_path: Path) -> None:
    args = arguments(tmp_path, save_strategy="steps", save_steps=2)
    with pytest.raises(MixfluenceError, match=r"-?(inf|nan) at step 3"):
        build(tiny_bert, args, loss=Exploding(tiny_bert)).train()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert [line["step"] for line in trace] == [0, 1, 2]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


@pytest.mark.parametrize(("saved", "kept"), [("steps", ["checkpoint-2"]), ("no", [])])
def test_parameters_that_are_not_numbers_are_never_saved(
    saved: str, kept: list[str], tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    args = arguments(tmp_path, save_strategy=saved, save_steps=2, logging_steps=100, max_steps=6)
    with pytest.raises(MixfluenceError, match=f"not finite at step {4 if kept else 6}"):
        build(tiny_bert, args, loss=Exploding(tiny_bert)).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == kept


@pytest.mark.parametrize("harm", [{"sampler": 3}, {"sampler": {}}, {"settings": {}}, {"fingerprints": 5}])
def test_a_state_that_was_made_up_is_refused(
    harm: dict[str, Any], tiny_bert: SentenceTransformer, tmp_path: Path
) -> None:
    args = arguments(tmp_path, save_strategy="steps", save_steps=2, max_steps=2)
    build(tiny_bert, args).train()
    path = tmp_path / "checkpoint-2" / STATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | harm), encoding="utf-8")
    seal(path.parent)
    again = build(tiny_bert, arguments(tmp_path, save_strategy="steps", save_steps=2))
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        again.train(resume_from_checkpoint=True)
