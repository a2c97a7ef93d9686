"""A run that was stopped and resumed is the run that was not.

- Parameters, draws, trace, log and the Trainer's counters are equal to the last bit, although work was done beyond the
  checkpoint: with and without accumulation, loader workers and dropout, and with weights that turned on the way.
- So they are across epochs that accumulation does not divide, at the boundary and off it.
- A run never stopped and one that is resumed at its end write the same trace.
- Other data, other datasets and a folder that is no checkpoint of ours are refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.errors import DataError
from mixfluence.runs import read_trace
from mixfluence.training.checkpoints import STATE_FILE
from mixfluence.training.trainer import MixtureTrainer
from tests.training.runs import TurnAt, Turning, arguments, build, pool

pytestmark = pytest.mark.slow

TIMED = {"seconds", "probing/seconds", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


class StopAt(TrainerCallback):
    """Stops a run as a user would, between two checkpoints."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        control.should_training_stop |= state.global_step == self._step


@pytest.fixture(params=["static", "transformer"])
def encoder(
    request: pytest.FixtureRequest, make_static: Callable[[], SentenceTransformer], tiny_bert_folder: Path
) -> Callable[[], SentenceTransformer]:
    """Builds equal encoders: without dropout and with it."""
    if request.param == "static":
        return make_static
    return lambda: SentenceTransformer(str(tiny_bert_folder), device="cpu")


def new_trainer(
    model: SentenceTransformer, folder: Path, callbacks: list[TrainerCallback] | None = None, **options: Any
) -> MixtureTrainer:
    """Return a trainer with a checkpoint every six steps and weights that turn before, at and after the first."""
    strategy = Turning()
    plan = {"max_steps": 12, "logging_steps": 2, "save_strategy": "steps", "save_steps": 6, **options}
    turns = TurnAt(strategy, 2, 5, 6, 9)
    return build(model, arguments(folder, **plan), strategy=strategy, callbacks=[turns, *(callbacks or [])])


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMED} for line in lines]


def assert_equal_runs(one: MixtureTrainer, other: MixtureTrainer) -> None:
    traces = [without_times(read_trace(Path(run.args.output_dir) / "trace.jsonl")) for run in (one, other)]
    assert traces[0] == traces[1]
    assert len({dataset for line in traces[0][1:] for dataset in line["trained"]}) == 2
    assert one.mixture_state() == other.mixture_state()
    assert (one.state.global_step, one.state.epoch) == (other.state.global_step, other.state.epoch)
    logs = [[line for line in without_times(run.state.log_history) if "loss" in line] for run in (one, other)]
    assert logs[0] == logs[1]
    states = [run.model.state_dict() for run in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def resume(
    encoder: Callable[[], SentenceTransformer], folder: Path, stop: int, checkpoint: int, **options: Any
) -> tuple[MixtureTrainer, MixtureTrainer]:
    """Return a run that went through, and one that was stopped, then resumed by a new trainer."""
    whole = new_trainer(encoder(), folder / "whole", **options)
    whole.train()
    stopped = new_trainer(encoder(), folder / "stopped", [StopAt(stop)], **options)
    stopped.train()
    assert stopped.state.global_step == stop > checkpoint
    resumed = new_trainer(encoder(), folder / "stopped", **options)
    resumed.train(resume_from_checkpoint=str(folder / "stopped" / f"checkpoint-{checkpoint}"))
    return whole, resumed


# Every two of the three choices meet.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "accumulation", "workers"),
    [("static", 1, 0), ("static", 2, 2), ("transformer", 1, 2), ("transformer", 2, 0)],
    indirect=["encoder"],
)
def test_a_resumed_run_is_the_run_that_was_not_stopped(
    encoder: Callable[[], SentenceTransformer], tmp_path: Path, accumulation: int, workers: int
) -> None:
    options = {"gradient_accumulation_steps": accumulation, "dataloader_num_workers": workers}
    whole, resumed = resume(encoder, tmp_path, stop=8, checkpoint=6, **options)
    assert whole.state.global_step == 12
    assert sum(whole.sampler.rows_drawn) == 12 * accumulation * 4
    ahead = [len(line["drawn_ahead"]) for line in read_trace(tmp_path / "whole" / "trace.jsonl")[1:]]
    assert (max(ahead) > 0) == (workers > 0)
    assert_equal_runs(whole, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 3], ids=["within an epoch", "between epochs"])
def test_epochs_resume_too(make_static: Callable[[], SentenceTransformer], tmp_path: Path, every: int) -> None:
    options = {"max_steps": -1, "num_train_epochs": 3, "gradient_accumulation_steps": 5, "save_steps": every}
    whole, resumed = resume(make_static, tmp_path, stop=every + 2, checkpoint=every, logging_steps=1, **options)
    assert (whole.state.global_step, whole.state.epoch) == (9, 3)
    assert_equal_runs(whole, resumed)


def test_the_last_checkpoint_is_found_and_no_other_trace_is_kept(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path
) -> None:
    whole = new_trainer(make_static(), tmp_path)
    whole.train()
    resumed = new_trainer(make_static(), tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 12
    assert resumed.mixture_state() == whole.mixture_state()
    assert [line["step"] for line in read_trace(tmp_path / "trace.jsonl")] == [0, 2, 4, 6, 8, 10, 12]
    again = new_trainer(make_static(), tmp_path, max_steps=2)
    again.train()
    assert [line["step"] for line in read_trace(tmp_path / "trace.jsonl")] == [0, 2]


def test_a_resumed_run_needs_no_trace(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    new_trainer(make_static(), tmp_path).train()
    (tmp_path / "trace.jsonl").unlink()
    new_trainer(make_static(), tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    described, *lines = read_trace(tmp_path / "trace.jsonl")
    assert list(described["datasets"]) == ["near", "far"]
    assert [line["step"] for line in lines] == [8, 10, 12]


def test_what_does_not_fit_the_checkpoint_is_refused(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path
) -> None:
    new_trainer(make_static(), tmp_path, max_steps=6).train()
    checkpoint = tmp_path / "checkpoint-6"

    def refusal(datasets: dict[str, Dataset], source: str | bool = str(checkpoint), folder: Path = tmp_path) -> str:
        trainer = build(make_static(), arguments(folder), train_dataset=datasets)
        with pytest.raises(DataError) as caught:
            trainer.train(resume_from_checkpoint=source)
        return str(caught.value)

    near, far = pool().values()
    assert "checkpoint-6: the training set 'far'" in refusal({"near": near, "far": far.select(range(17))})
    for other in {"near": near}, {"far": far, "near": near}:
        assert refusal(other).startswith(f"{checkpoint}: written with the training sets near, far, found ")
    assert str(tmp_path / "elsewhere") in refusal(pool(), True, tmp_path / "elsewhere")
    (checkpoint / STATE_FILE).write_text("{", encoding="utf-8")
    assert STATE_FILE in refusal(pool())
    (checkpoint / STATE_FILE).unlink()
    assert STATE_FILE in refusal(pool())
