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
    """A request to stop the run.

    Attributes:
        received: The signal that was received; None if none was.
        patient: Whether the first signal waits for the end of a step, because training is running.
    """

    received: int | None
    patient: bool


class StopOnRequest(TrainerCallback):
    """Ends training after the current step with a checkpoint, then raises `KeyboardInterrupt` with the signal.

    On several processes a signal to one of them is enough; all stop after the same step, the next at which they
    exchange requests.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let signals wait for the end of a step from now on, and keep the loader's workers alive until then."""
        self._request.patient = True
        # Workers start after this, with the first batch.
        kwargs["train_dataloader"].worker_init_fn = outlast_signals

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop if requested; the Trainer saves after this."""
        if args.world_size > 1:
            if state.global_step % STEPS_BETWEEN_EXCHANGES:
                return
            self._request.received = _any_process(args, self._request.received)
        if self._request.received is not None:
            control.should_training_stop = control.should_save = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Raise if the run was stopped; otherwise signals act at once again."""
        self._request.patient = False
        if self._request.received is not None:
            raise KeyboardInterrupt(self._request.received)


def outlast_signals(worker: int) -> None:
    """Make a loader's worker ignore Ctrl-C and SIGTERM, except a SIGTERM from its parent.

    Schedulers and terminals send signals to every process of a run. Torch's workers exit on them unless this is their
    `worker_init_fn`; outside Linux they exit anyway, and the run ends without a checkpoint.
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


def _any_process(args: TrainingArguments, number: int | None) -> int | None:
    """Return the signal that any process received."""
    received = torch.tensor([number or 0], device=args.device)
    torch.distributed.all_reduce(received, torch.distributed.ReduceOp.MAX)
    return int(received.item()) or None
