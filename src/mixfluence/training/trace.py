"""Keeps time: tells the sampler what was trained, writes `trace.jsonl` and our part of a checkpoint."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.errors import DataError, MixfluenceError
from mixfluence.files import sync, write_text
from mixfluence.influence import Influences
from mixfluence.runs import read_trace
from mixfluence.training.checkpoints import (
    abandon_later,
    checkpoint_of,
    load_unlogged_loss,
    rotate,
    seal,
    unlogged_loss,
)
from mixfluence.training.sampler import Draw
from mixfluence.training.streams import StreamState

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer

STATE_FILE = "mixture_state.json"


class MixtureCallback(TrainerCallback):
    """Follows a `MixtureTrainer` step by step.

    `trace.jsonl` starts with one line about the datasets. Then comes a line whenever the host logs:
    the step, the probabilities in force, and since the line before it the dataset and number of rows of
    every batch trained on. Batches already drawn but not trained on are listed too: new weights act only
    after them. `outcome` is the mixture found so far, for a strategy that looks for one to train on later. A line with
    `update` says what a round of probes measured and cost, and the new weights.
    """

    def __init__(self, trainer: MixtureTrainer, path: Path) -> None:
        self._trainer = trainer
        self._path = path
        self._untold: list[Draw] = []
        self._started = 0.0
        self._lines = 0
        self._limit: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the trace, or cut a resumed one back to its checkpoint."""
        self._trainer.check_probes()
        # The host would delete old checkpoints before the new one is complete.
        self._limit, args.save_total_limit = args.save_total_limit or self._limit, None
        saved = self._trainer.resumed or {"untold": [], "trace_lines": 0}
        self._untold = [Draw(dataset, rows, StreamState()) for dataset, rows in saved["untold"]]
        if "unlogged" in saved:
            load_unlogged_loss(self._trainer, saved["unlogged"])
        self._started = time.monotonic()
        if not state.is_world_process_zero:
            return
        if self._trainer.resumed:
            abandon_later(args.output_dir, state.global_step)
        known = read_trace(self._path)[: saved["trace_lines"]] if state.global_step and self._path.exists() else []
        if known:
            self._started -= known[-1]["seconds"]
        else:
            known = [{"step": 0, "seconds": 0.0, "datasets": self._trainer.describe_datasets()}]
        self._lines = len(known)
        write_text(self._path, "".join(map(_line, known)))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the sampler that a batch was trained on, the last of its step, and update the strategy if due."""
        self._untold.append(self._trainer.sampler.forget_trained())
        if self._trainer.update_due:
            self._tell(state, {})
            update = self._trainer.update_strategy()
            self._write(state, {"weights": self._trainer.probabilities(), "update": update})

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the sampler that a batch was trained on, one of several whose gradients are accumulated."""
        self._untold.append(self._trainer.sampler.forget_trained())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a line to the trace with the loss, or end a run whose loss is none."""
        if logs and "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise MixfluenceError(
                    f"the loss was {logs['loss']} by step {state.global_step}: lower the learning rate, or look at "
                    "what was drawn last; checkpoints from before are kept"
                )
            self._tell(state, {name: logs[name] for name in ("loss", "learning_rate") if name in logs})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the state of sampler, strategy and trace beside the host's, and declare the checkpoint complete."""
        own = {
            "trace_lines": self._lines,
            "untold": [(draw.dataset, draw.rows) for draw in self._untold],
            "unlogged": unlogged_loss(self._trainer),
        }
        # Each process writes its own random state.
        self._trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = checkpoint_of(args.output_dir, state.global_step)
            write_text(checkpoint / STATE_FILE, json.dumps(self._trainer.mixture_state() | own))
            sync(self._path)
            seal(checkpoint)
            rotate(args.output_dir, self._limit, state.best_model_checkpoint)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Trace the last steps."""
        self._tell(state, {})
        args.save_total_limit = self._limit

    def _tell(self, state: TrainerState, facts: dict[str, float]) -> None:
        if not self._untold and not facts:
            return
        line = {
            **facts,
            "weights": self._trainer.probabilities(),
            **({"outcome": outcome} if (outcome := self._trainer.outcome()) else {}),
            "trained": [draw.dataset for draw in self._untold],
            "rows": [draw.rows for draw in self._untold],
            "drawn_ahead": self._trainer.sampler.drawn_ahead,
        }
        self._untold = []
        self._write(state, line)

    def _write(self, state: TrainerState, line: dict[str, Any]) -> None:
        if state.is_world_process_zero:
            now = {"step": state.global_step, "seconds": round(time.monotonic() - self._started, 3)}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(now | line))
            self._lines += 1


def describe(influences: Influences, facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return what a round measured and what a strategy made of it, with names instead of positions.

    Args:
        influences: What was measured.
        facts: What the strategy says: lists have one value per dataset that was measured.
        names: Names of all datasets.
    """
    probed = [names[dataset] for dataset in influences.probed]
    named = {name: dict(zip(probed, v, strict=True)) if isinstance(v, list) else v for name, v in facts.items()}
    return {
        **named,
        "on_targets": {
            target: dict(zip(probed, column.tolist(), strict=True))
            for target, column in zip(influences.targets, influences.on_targets().T, strict=True)
        },
        # JSON knows no not-a-number.
        "dev": {
            t: v if math.isfinite(v) else None
            for t, v in zip(influences.targets, influences.base.tolist(), strict=True)
        },
        "rows": {target: gains.shape[1] for target, gains in zip(influences.targets, influences.gains, strict=True)},
        "failed": [names[dataset] for dataset in influences.failed],
    }


def seconds_until(path: Path, step: int) -> float:
    """Return how long the run in a trace had trained when it reached a step."""
    return max((float(line["seconds"]) for line in read_trace(path) if line["step"] <= step), default=0.0)


def probing_cost(path: Path) -> dict[str, float]:
    """Return what the probes in a trace cost: rounds, seconds, probes that failed, most memory in parameter sizes."""
    updates = [line["update"] for line in read_trace(path) if "update" in line]
    return {
        "rounds": len(updates),
        "seconds": sum(update["seconds"] for update in updates),
        "failed": sum(len(update["failed"]) for update in updates),
        "parameter_sizes": max((update["memory"] for update in updates), default=0.0),
    }


def read_state(folder: Path) -> dict[str, Any]:
    """Read our part of a checkpoint."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder / STATE_FILE}: not the checkpoint of a mixture ({error})") from error
    return state


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"
