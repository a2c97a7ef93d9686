"""What a probe changes besides parameters, put back when it is done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from mixfluence.errors import RecipeError
from mixfluence.influence.snapshot import Snapshot
from mixfluence.modes import modes_kept

# Part of the greatest learning rate below which `floored` probes do not go.
LEAST_RATE = 0.5


@contextmanager
def way_back(snapshot: Snapshot) -> Iterator[None]:
    """Go back to the snapshot at the end, whatever happens."""
    try:
        yield
    finally:
        snapshot.restore()


@contextmanager
def surroundings(modules: nn.Module) -> Iterator[None]:
    """Put modes and random states back at the end."""
    # Not ours to use, but a loss or a metric may.
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    try:
        with modes_kept(modules), torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def memory_named(section: str, remedy: str) -> Iterator[None]:
    """Turn a lack of memory into one error that says what to lower.

    Nothing is tried again with less: a smaller batch has fewer negatives, so it would measure something else.

    Args:
        section: The part of the recipe that decides how datasets are measured.
        remedy: What else helps.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        sizes = f"{section}.batch_size or {section}.dev_batch_size"
        raise RecipeError(f"out of memory while measuring datasets: lower {sizes}, or {remedy}") from error


@contextmanager
def learning_rate(optimizer: Optimizer, wanted: Literal["current", "floored"] | float) -> Iterator[None]:
    """Set the probes' learning rate for a while."""
    usual = [group["lr"] for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, usual, strict=True):
            if wanted == "floored":
                group["lr"] = max(rate, LEAST_RATE * group.get("initial_lr", rate))
            elif wanted != "current":
                group["lr"] = wanted
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, usual, strict=True):
            group["lr"] = rate
