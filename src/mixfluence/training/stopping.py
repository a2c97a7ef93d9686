"""Stopping a run by a signal: the step ends, a checkpoint is written, and the run can be resumed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from threading import Thread
from typing import Any, Protocol

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Exchanging requests between processes makes each wait for its device.
STEPS_BETWEEN_EXCHANGES = 8


class Request(Protocol):
    """The signal received, and whether the first one waits for the end of a step because training is running."""

    received: int | None
    patient: bool


class StopOnRequest(TrainerCallback):
    """Ends training after the current step with a checkpoint, then raises `KeyboardInterrupt` with the signal.

    On several processes a signal to one of them is enough; all stop after the same step, the next at which they
    exchange requests.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kw: Any) -> None:
        """Let signals wait for the end of a step from now on, and keep the loader's workers alive until then."""
        self._request.patient = True
        # Workers start after this, with the first batch.
        kw["train_dataloader"].worker_init_fn = outlast_signals

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop if requested; the Trainer saves after this."""
        if args.world_size > 1:
            if state.global_step % STEPS_BETWEEN_EXCHANGES:
                return
            received = torch.tensor([self._request.received or 0], device=args.device)
            torch.distributed.all_reduce(received, torch.distributed.ReduceOp.MAX)
            self._request.received = int(received.item()) or None
        if self._request.received is not None:
            control.should_training_stop = control.should_save = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Raise if the run was stopped; otherwise signals act at once again."""
        self._request.patient = False
        if self._request.received is not None:
            raise KeyboardInterrupt(self._request.received)


def outlast_signals(worker: int) -> None:
    """Make a loader's worker ignore Ctrl-C and SIGTERM, which schedulers and terminals send to every process.

    It still exits on a SIGTERM from its parent. Outside Linux workers exit at once, without a checkpoint.
    """
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        Thread(target=_exit_when_parent_asks, daemon=True).start()


def _exit_when_parent_asks() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)
