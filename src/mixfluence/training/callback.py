"""Callbacks of a run: one runs probes and writes trace and checkpoints, the other stops a run on a signal.

The first line of `trace.jsonl` has `step` 0, `seconds` 0 and, by name, the `rows`, `distinct_positives` and
`batch_size` of the `datasets`. Every other line has `step`, `seconds` since the start of training, `weights` (the
probability of each dataset for the next draw), and one of:

- when the Trainer logs, before each round of probes and at the end: `trained` and `rows`, the dataset and number of
  rows of every batch trained on since the previous such line; `drawn_ahead`, the datasets of batches that the
  loader's workers have already drawn, so that new weights apply only after them; `loss` and `learning_rate` if logged;
  `outcome`, the mixture found so far by a strategy that looks for one to train on later.
- after each round of probes: `update`, what the round measured and cost; see `mixfluence.training.probing.describe`.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from copy import copy
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mixfluence.errors import MixfluenceError
from mixfluence.files import sync, write_text
from mixfluence.influence.snapshot import local
from mixfluence.runs import read_trace
from mixfluence.training import STOP_SIGNALS
from mixfluence.training.checkpoints import STATE_FILE, checkpoint_of, rotate, seal, unseal_later, writing
from mixfluence.training.folder import finish_folder, start_folder

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mixfluence.cli.train import StopSignals
    from mixfluence.training.trainer import MixtureMixin

# Exchanging stop requests between processes makes each wait for its device.
STEPS_BETWEEN_EXCHANGES = 8


class MixtureCallback(TrainerCallback):
    """Follows a `MixtureTrainer` step by step, and writes its trace to `path`."""

    def __init__(self, trainer: MixtureMixin, path: Path) -> None:
        self._trainer = trainer
        self._path = path
        # Dataset and rows of each batch trained on since the last line.
        self._unwritten: list[tuple[int, int]] = []
        self._started = 0.0
        self._lines = 0
        self._limit: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._trainer.probing:
            self._trainer.probing.start()
            _warn_without_rounds(self._trainer)
        # The Trainer would delete old checkpoints before the new one is complete.
        self._limit, args.save_total_limit = args.save_total_limit or self._limit, None
        # Filtering waits for the device at every step and hides NaN from the log, where `on_log` looks for it.
        args.logging_nan_inf_filter = False
        self._started = time.monotonic()
        saved = self._trainer.resumed
        self._unwritten = saved["untold"] if saved else []
        if saved:
            # The Trainer would keep the intervals of the checkpoint.
            state.compute_steps(args, state.max_steps)
            _follow_schedule(self._trainer)
            # It would start the sum of losses since the last log at 0.
            losses = saved["unlogged"]["losses"]
            same = len(losses) == args.world_size
            self._trainer._tr_loss += losses[args.process_index] if same else fmean(losses)
            self._trainer._globalstep_last_logged = saved["unlogged"]["since"]
        if state.best_global_step:
            # The folder may have been moved, and the Trainer forgets a checkpoint that is not where it was.
            state.best_model_checkpoint = str(checkpoint_of(args.output_dir, state.best_global_step))
        if not state.is_world_process_zero:
            return
        unseal_later(args.output_dir, state.global_step)
        lines = []
        if saved:
            lines = read_trace(self._path)[: saved["trace_lines"]] if self._path.exists() else []
            if missing := saved["trace_lines"] - len(lines):
                logger.warning("%s: %d lines are missing, reports will lack these steps", self._path, missing)
        self._trainer.seconds_before = lines[-1]["seconds"] if lines else 0.0
        self._started -= self._trainer.seconds_before
        lines = lines or [{"step": 0, "seconds": 0.0, "datasets": self._trainer.describe_datasets()}]
        self._lines = len(lines)
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
        if self._trainer.own_folder:
            start_folder(self._trainer, self._trainer.own_folder)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.on_substep_end(args, state, control)
        if self._trainer.probing and self._trainer.probing.due:
            self._write_trained(state, {})
            update = self._trainer.probing.update()
            self._write(state, {"weights": self._trainer.probabilities(), "update": update})

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        draw = self._trainer.sampler.pop_trained()
        self._unwritten.append((draw.dataset, draw.rows))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs: dict[str, float] = kwargs["logs"]
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                raise diverged(f"the loss is {logs['loss']}", state.global_step)
            self._write_trained(state, {name: logs[name] for name in ("loss", "learning_rate") if name in logs})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        losses = self._trainer.accelerator.gather(self._trainer._tr_loss.reshape(1)).tolist()
        own = {
            "trace_lines": self._lines,
            "untold": self._unwritten,
            "unlogged": {"losses": losses, "since": self._trainer._globalstep_last_logged},
        }
        # Each process writes its own random state.
        self._trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            checkpoint = checkpoint_of(args.output_dir, state.global_step)
            with writing(checkpoint):
                write_text(checkpoint / STATE_FILE, json.dumps(self._trainer.mixture_state() | own))
                sync(self._path)
                seal(checkpoint)
            rotate(args.output_dir, self._limit, state.best_model_checkpoint)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._write_trained(state, {})
        args.save_total_limit = self._limit
        refuse_not_finite(self._trainer)
        if self._trainer.own_folder and state.is_world_process_zero:
            finish_folder(self._trainer, self._trainer.own_folder, probing_cost(self._path))

    def _write_trained(self, state: TrainerState, logged: dict[str, float]) -> None:
        if not self._unwritten and not logged:
            return
        line = {
            **logged,
            "weights": self._trainer.probabilities(),
            **({"outcome": outcome} if (outcome := self._trainer.outcome()) else {}),
            "trained": [dataset for dataset, _ in self._unwritten],
            "rows": [rows for _, rows in self._unwritten],
            "drawn_ahead": self._trainer.sampler.drawn_ahead,
        }
        self._unwritten = []
        self._write(state, line)

    def _write(self, state: TrainerState, line: dict[str, Any]) -> None:
        if state.is_world_process_zero:
            now = {"step": state.global_step, "seconds": round(time.monotonic() - self._started, 3)}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(now | line) + "\n")
            self._lines += 1


class StopOnRequest(TrainerCallback):
    """After a signal, ends training after the current step with a checkpoint, then raises `KeyboardInterrupt` with it.

    On several processes a signal to one of them is enough; all stop after the same step, the next at which they
    exchange requests.
    """

    def __init__(self, request: StopSignals) -> None:
        self._request = request

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kw: Any) -> None:
        self._request.patient = True
        # Workers start after this, with the first batch.
        kw["train_dataloader"].worker_init_fn = outlast_signals

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.world_size > 1:
            if state.global_step % STEPS_BETWEEN_EXCHANGES:
                return
            received = torch.tensor([self._request.received or 0], device=args.device)
            torch.distributed.all_reduce(received, torch.distributed.ReduceOp.MAX)
            self._request.received = int(received.item()) or None
        if self._request.received is not None:
            control.should_training_stop = control.should_save = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._request.patient = False
        if self._request.received is not None:
            raise KeyboardInterrupt(self._request.received)


def outlast_signals(worker: int) -> None:
    """Make a loader's worker ignore signals to stop, which schedulers and terminals send to every process.

    It still exits on a SIGTERM from its parent. Outside Linux workers exit at once, without a checkpoint.
    """
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        Thread(target=_exit_when_parent_asks, daemon=True).start()


def _exit_when_parent_asks() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def diverged(what: str, step: int) -> MixfluenceError:
    """Return the error of a run that cannot go on."""
    advice = "lower the learning rate, or check the datasets drawn last; earlier checkpoints are kept"
    return MixfluenceError(f"{what} at step {step}: {advice}")


def refuse_not_finite(trainer: MixtureMixin) -> None:
    """Raise an error if a trained parameter is not finite, so that no checkpoint or model is written with it."""
    finite = [local(parameter).isfinite().all() for parameter in trainer.model.parameters() if parameter.requires_grad]
    if not torch.stack(finite).all():
        raise diverged("parameters are not finite", trainer.state.global_step)


def probing_cost(path: Path) -> dict[str, float]:
    """Return the cost of the probes in a trace: rounds, seconds, failed probes, peak memory in parameter sizes."""
    updates = [line["update"] for line in read_trace(path) if "update" in line]
    return {
        "rounds": len(updates),
        "seconds": sum(update["seconds"] for update in updates),
        "failed": sum(len(update["failed"]) for update in updates),
        "parameter_sizes": max((update["memory"] for update in updates), default=0.0),
    }


def _warn_without_rounds(trainer: MixtureMixin) -> None:
    """Warn at the start of a run that is too short for its strategy to measure anything."""
    schedule, steps = _schedule(trainer), trainer.state.max_steps
    rate: Any = schedule.lr_lambdas[0] if isinstance(schedule, LambdaLR) else lambda step: 1.0
    # A copy, because some strategies remember what they were asked last.
    strategy = copy(trainer.strategy)
    if trainer.resumed or any(strategy.due(step, rate(step)) for step in range(1, steps)):
        return
    if trainer.is_world_process_zero():
        keys = [key for key in ("warmup_steps", "update_every", "freeze_below") if hasattr(strategy, key)]
        advice = f"train for more than {steps} steps" + (
            f", or lower {', '.join(keys)} of the strategy" if keys else ""
        )
        logger.warning("%s: no round of measurements takes place in this run, %s", strategy.label, advice)


def _schedule(trainer: MixtureMixin) -> Any:
    return getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)


def _follow_schedule(trainer: MixtureMixin) -> None:
    """Set the learning rate of the next step by a schedule that may be longer than that of the checkpoint."""
    schedule = _schedule(trainer)
    if isinstance(schedule, LambdaLR):
        parts = zip(schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True)
        for group, rate, share in parts:
            group["lr"] = rate * share(schedule.last_epoch)
