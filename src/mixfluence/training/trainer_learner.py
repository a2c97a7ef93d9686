"""How a trainer looks to a probe, between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast, reduce, send_to_device
from torch import Tensor, nn

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer


class TrainerLearner:
    """A trainer between two steps, as a probe sees it.

    Args:
        trainer: Between two steps.
        alone: Whether each process trains by itself, on datasets of its own, while it is a learner.
    """

    def __init__(self, trainer: MixtureTrainer, *, alone: bool) -> None:
        self._trainer = trainer
        self._losses = list(trainer.loss.values()) if isinstance(trainer.loss, dict) else [trainer.loss]
        self.model: nn.Module = trainer.model
        self.modules: nn.Module = nn.ModuleList([trainer.model, *self._losses])
        self.rank: int = trainer.args.process_index if alone else 0
        self.world: int = trainer.args.world_size if alone else 1
        # Under accelerate's wrapper, whose `step` does nothing while gradients are accumulated.
        self.optimizer: torch.optim.Optimizer = trainer.optimizer.optimizer

    def backward(self, batch: dict[str, Any]) -> None:
        """Leave the clipped gradient of a batch's loss in the parameters, as a training step would."""
        trainer = self._trainer
        wrapped = trainer.model_wrapped if self.world == 1 else trainer.model
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(wrapped, self.place(batch))
        trainer.accelerator.backward(loss)
        if trainer.args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), trainer.args.max_grad_norm)

    def agree(self, values: Tensor) -> Tensor:
        """Return the values of the first process on every process."""
        agreed: Tensor = broadcast(values) if self._trainer.args.world_size > 1 else values
        return agreed

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        added: Tensor = reduce(values.contiguous(), "sum")
        return added

    @contextmanager
    def on_its_own(self) -> Iterator[None]:
        """Take the losses out of the exchange between processes for a while: other ones are at other datasets."""
        wrapped = self._trainer.model_wrapped
        if self.world == 1:
            yield
            return
        parts = [part for loss in self._losses for part in loss.modules()]
        calling = [part for part in parts if getattr(part, "model", None) is wrapped]
        gathering = [part for part in parts if getattr(part, "gather_across_devices", False)]
        try:
            for part in calling:
                part.model = self.model
            for part in gathering:
                part.gather_across_devices = False
            yield
        finally:
            for part in calling:
                part.model = wrapped
            for part in gathering:
                part.gather_across_devices = True

    def place(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch on the trainer's device."""
        placed: dict[str, Any] = send_to_device(batch, self._trainer.args.device, non_blocking=True)
        return placed
