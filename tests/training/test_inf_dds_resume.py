"""A run guided by influence that was stopped and resumed is the run that was not.

- Parameters, optimizer, logits, trace and log are equal to the last bit, whether the checkpoint lies between two
  rounds or right behind one, for probes of all kinds, with Reptile, dropout, loader workers and a subset.
- The next round of a resumed run draws the datasets, rows, dev rows and dropout that it would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from mixfluence.influence import Probe, Reptile
from mixfluence.policy import Fair, PolicyGradient
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import arguments, build, pool
from tests.training.test_resume import StopAt, without_times

pytestmark = pytest.mark.slow
ROUNDS = [2, 5, 8, 11]
KINDS: dict[str, Callable[[], InfDDS]] = {
    "inherited": lambda: InfDDS(
        update_every=3,
        warmup_steps=2,
        freeze_below=0.0,
        subset=2,
        probe=Probe(state="inherited"),
        reptile=Reptile(),
    ),
    "momentum-free": lambda: InfDDS(
        update_every=3,
        warmup_steps=2,
        freeze_below=0.0,
        probe=Probe(state="momentum-free", dev_batch_size=8),
        rule=PolicyGradient(step=0.3),
        shrink=False,
        gate=False,
    ),
    "fair": lambda: InfDDS(update_every=3, warmup_steps=2, freeze_below=0.0, subset=2, rule=Fair()),
}


def new_trainer(
    model: SentenceTransformer, folder: Path, kind: str, callbacks: list[TrainerCallback] | None = None, **options: Any
) -> MixtureTrainer:
    """Return a trainer with everything new: twelve steps, rounds after steps 2, 5, 8 and 11."""
    words = range(60, 80)
    third = Dataset.from_dict({"query": [f"w{i}" for i in words], "answer": [f"w{i - 50} w{i}" for i in words]})
    plan = {"max_steps": 12, "save_strategy": "steps", "save_total_limit": None, **options}
    return build(
        model,
        arguments(folder, **plan),
        train_dataset={**pool(), "third": third},
        dev_dataset={"dev": pool()["near"].select(range(20)), "other": third},
        strategy=KINDS[kind](),
        callbacks=callbacks,
    )


def timeless_trace(trainer: MixtureTrainer) -> list[dict[str, Any]]:
    lines = without_times(read_trace(Path(trainer.args.output_dir) / "trace.jsonl"))
    return [line | ({"update": without_times([line["update"]])[0]} if "update" in line else {}) for line in lines]


def logged(trainer: MixtureTrainer) -> list[dict[str, Any]]:
    """What was logged, but for the last round's influences, which are in the trace."""
    lines = [line for line in without_times(trainer.state.log_history) if "loss" in line]
    return [{name: value for name, value in line.items() if not name.startswith("influence/")} for line in lines]


def assert_equal_tensors(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_equal_tensors(value, other[name])
    else:
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("kind", "encoder", "checkpoint", "workers"),
    [
        ("inherited", "transformer", 6, 0),
        ("inherited", "static", 5, 2),
        pytest.param("momentum-free", "static", 6, 0, marks=pytest.mark.soak),
        ("momentum-free", "transformer", 5, 0),
        ("fair", "static", 6, 0),
    ],
    ids=[
        "inherited, between",
        "inherited, at a round, workers",
        "momentum-free, between",
        "momentum-free, at a round",
        "fair, between",
    ],
)
def test_a_resumed_run_is_the_run_that_was_not_stopped(
    make_static: Callable[[], SentenceTransformer],
    tiny_bert_folder: Path,
    tmp_path: Path,
    kind: str,
    encoder: str,
    checkpoint: int,
    workers: int,
) -> None:
    def model() -> SentenceTransformer:
        return make_static() if encoder == "static" else SentenceTransformer(str(tiny_bert_folder), device="cpu")

    options: dict[str, Any] = {"save_steps": checkpoint, "dataloader_num_workers": workers}
    whole = new_trainer(model(), tmp_path / "whole", kind, **options)
    whole.train()
    stopped = new_trainer(model(), tmp_path / "stopped", kind, [StopAt(9)], **options)
    stopped.train()
    assert [line["step"] for line in timeless_trace(stopped) if "update" in line] == [2, 5, 8]
    resumed = new_trainer(model(), tmp_path / "stopped", kind, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / f"checkpoint-{checkpoint}"))

    trace = timeless_trace(whole)
    assert [line["step"] for line in trace if "update" in line] == ROUNDS
    assert len({line["weights"]["near"] for line in trace if "update" in line}) > 1
    assert (max(len(line.get("drawn_ahead", [])) for line in trace) > 0) == (workers > 0)
    assert timeless_trace(resumed) == trace
    assert resumed.mixture_state() == whole.mixture_state()
    assert resumed.probabilities() == whole.probabilities()
    assert logged(resumed) == logged(whole)
    assert_equal_tensors(resumed.model.state_dict(), whole.model.state_dict())
    assert_equal_tensors(*(run.optimizer.state_dict()["state"] for run in (resumed, whole)))
