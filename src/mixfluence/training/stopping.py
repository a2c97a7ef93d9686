"""Stopping a run from outside: the step ends, a checkpoint is written, and the run can go on another day."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from threading import Thread
from typing import Any, Protocol

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Asking makes every process wait for its device.
STEPS_BETWEEN_QUESTIONS = 8


class Request(Protocol):
    """Knows whether somebody wants the run to stop.

    Attributes:
        received: The number of the signal that asked for it; None if none did.
        patient: Whether a first signal may wait for the end of a step, because training is going on.
    """

    received: int | None
    patient: bool


class StopOnRequest(TrainerCallback):
    """Ends training after the current step with a checkpoint, then raises `KeyboardInterrupt` with the signal.

    On several processes one that was asked is enough, and all stop after the same step: one of those at which they ask
    each other.

    Args:
        request: Whether to stop.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From now on, a signal waits for the end of a step, which needs the batches of the loader's workers."""
        self._request.patient = True
        # Workers are started after this, when the first batch is asked for.
        kwargs["train_dataloader"].worker_init_fn = outlast_signals

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop if asked to; the host saves after this."""
        if args.world_size > 1:
            if state.global_step % STEPS_BETWEEN_QUESTIONS:
                return
            self._request.received = _any_process(args, self._request.received)
        if self._request.received is not None:
            control.should_training_stop = control.should_save = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave a run that was stopped; after one that was not, signals wait for nothing."""
        self._request.patient = False
        if self._request.received is not None:
            raise KeyboardInterrupt(self._request.received)


def outlast_signals(worker: int) -> None:
    """Let a loader's worker go on after Ctrl-C and SIGTERM, unless the SIGTERM comes from its parent.

    Schedulers and terminals send a signal to every process of a run. Torch's workers die of it unless this is their
    `worker_init_fn`; outside Linux they do even so, and the run ends without a checkpoint.
    """
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        Thread(target=_end_when_the_parent_asks, daemon=True).start()


def _end_when_the_parent_asks() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def _any_process(args: TrainingArguments, number: int | None) -> int | None:
    """Return the signal that any process has received."""
    received = torch.tensor([number or 0], device=args.device)
    torch.distributed.all_reduce(received, torch.distributed.ReduceOp.MAX)
    return int(received.item()) or None
