"""Training and evaluation modes of a model's parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Put every part back into its mode at the end: some may have been frozen in evaluation mode on purpose."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
