"""The callback that follows training: it runs probes when due, and writes the trace and our part of checkpoints.

The first line of `trace.jsonl` has `step` 0, `seconds` 0 and, by name, the `rows`, `distinct_positives` and
`batch_size` of the `datasets`. Every other line has `step`, `seconds` since the start of training, `weights` (the
probability of each dataset for the next draw), and one of:

- when the Trainer logs, before each round of probes and at the end: `trained` and `rows`, the dataset and number of
  rows of every batch trained on since the previous such line; `drawn_ahead`, the datasets of batches that the loader's
  workers have already drawn, so that new weights apply only after them; `loss` and `learning_rate` if logged;
  `outcome`, the mixture found so far by a strategy that looks for one to train on later.
- after each round of probes: `update`, what the round measured and cost; see `mixfluence.training.probing.describe`.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.errors import MixfluenceError
from mixfluence.files import sync, write_text
from mixfluence.runs import read_trace
from mixfluence.training.checkpoints import STATE_FILE, checkpoint_of, rotate, seal, unseal_later
from mixfluence.training.sampler import Draw
from mixfluence.training.streams import StreamState

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer


class MixtureCallback(TrainerCallback):
    """Follows a `MixtureTrainer` step by step, and writes its trace to `path`.

    Attributes:
        seconds_before: Training time before the checkpoint that a run was resumed from.
    """

    def __init__(self, trainer: MixtureTrainer, path: Path) -> None:
        self.seconds_before = 0.0
        self._trainer = trainer
        self._path = path
        self._unwritten: list[Draw] = []
        self._started = 0.0
        self._lines = 0
        self._limit: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the trace, or cut a resumed one back to its checkpoint."""
        if self._trainer.probing:
            self._trainer.probing.start()
        # The Trainer would delete old checkpoints before the new one is complete.
        self._limit, args.save_total_limit = args.save_total_limit or self._limit, None
        saved = self._trainer.resumed or {"untold": [], "trace_lines": 0}
        self._unwritten = [Draw(dataset, rows, StreamState()) for dataset, rows in saved["untold"]]
        if "unlogged" in saved:
            self._load_unlogged_loss(saved["unlogged"])
        self._started = time.monotonic()
        if not state.is_world_process_zero:
            return
        if self._trainer.resumed:
            unseal_later(args.output_dir, state.global_step)
        known = read_trace(self._path)[: saved["trace_lines"]] if state.global_step and self._path.exists() else []
        self.seconds_before = known[-1]["seconds"] if known else 0.0
        self._started -= self.seconds_before
        if not known:
            known = [{"step": 0, "seconds": 0.0, "datasets": self._trainer.describe_datasets()}]
        self._lines = len(known)
        write_text(self._path, "".join(map(_line, known)))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the last batch of a step, and run probes if they are due."""
        self._unwritten.append(self._trainer.sampler.pop_trained())
        if self._trainer.probing and self._trainer.probing.due:
            self._write_trained(state, {})
            update = self._trainer.probing.update()
            self._write(state, {"weights": self._trainer.probabilities(), "update": update})

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count one of several batches whose gradients are accumulated."""
        self._unwritten.append(self._trainer.sampler.pop_trained())

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write a line with the loss, or stop a run whose loss is not finite."""
        logs: dict[str, float] = kwargs["logs"]
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise MixfluenceError(
                    f"the loss is {logs['loss']} at step {state.global_step}: lower the learning rate, or check the "
                    "datasets drawn last; earlier checkpoints are kept"
                )
            self._write_trained(state, {name: logs[name] for name in ("loss", "learning_rate") if name in logs})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Add our state to the checkpoint, seal it and delete old ones."""
        own = {
            "trace_lines": self._lines,
            "untold": [(draw.dataset, draw.rows) for draw in self._unwritten],
            "unlogged": self._unlogged_loss(),
        }
        # Each process writes its own random state.
        self._trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = checkpoint_of(args.output_dir, state.global_step)
            write_text(checkpoint / STATE_FILE, json.dumps(self._trainer.mixture_state() | own))
            sync(self._path)
            seal(checkpoint)
            rotate(args.output_dir, self._limit, state.best_model_checkpoint)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the line of the last steps."""
        self._write_trained(state, {})
        args.save_total_limit = self._limit

    def _unlogged_loss(self) -> dict[str, Any]:
        """Return the loss that the Trainer has summed up since its last log, per process, and the step of that log."""
        losses = self._trainer.accelerator.gather(self._trainer._tr_loss.reshape(1)).tolist()
        return {"losses": losses, "since": self._trainer._globalstep_last_logged}

    def _load_unlogged_loss(self, state: dict[str, Any]) -> None:
        """Continue the sum, which the Trainer would start again at 0."""
        self._trainer._tr_loss += state["losses"][self._trainer.args.process_index]
        self._trainer._globalstep_last_logged = state["since"]

    def _write_trained(self, state: TrainerState, logged: dict[str, float]) -> None:
        if not self._unwritten and not logged:
            return
        line = {
            **logged,
            "weights": self._trainer.probabilities(),
            **({"outcome": outcome} if (outcome := self._trainer.outcome()) else {}),
            "trained": [draw.dataset for draw in self._unwritten],
            "rows": [draw.rows for draw in self._unwritten],
            "drawn_ahead": self._trainer.sampler.drawn_ahead,
        }
        self._unwritten = []
        self._write(state, line)

    def _write(self, state: TrainerState, line: dict[str, Any]) -> None:
        if state.is_world_process_zero:
            now = {"step": state.global_step, "seconds": round(time.monotonic() - self._started, 3)}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(now | line))
            self._lines += 1


def probing_cost(path: Path) -> dict[str, float]:
    """Return the cost of the probes in a trace: rounds, seconds, failed probes, peak memory in parameter sizes."""
    updates = [line["update"] for line in read_trace(path) if "update" in line]
    return {
        "rounds": len(updates),
        "seconds": sum(update["seconds"] for update in updates),
        "failed": sum(len(update["failed"]) for update in updates),
        "parameter_sizes": max((update["memory"] for update in updates), default=0.0),
    }


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"
