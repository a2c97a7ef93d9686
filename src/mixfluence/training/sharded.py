"""Saving and loading of models that several processes hold in shards, or of which an adapter alone is trained."""

from __future__ import annotations

from pathlib import Path

import torch
from sentence_transformers.base.trainer import BaseTrainer
from torch import nn
from transformers.trainer import SCHEDULER_NAME

from mixfluence.adapters import has_adapter, load_trained
from mixfluence.influence.shards import load_shards, save_shards, whole


class ShardedMixin(BaseTrainer):
    """A trainer that also saves and resumes sharded models (FSDP2) and adapters; others as its base does.

    sentence-transformers saves only models that are whole. The checkpoints of accelerate cannot hold the optimizer of
    a model with parameters that never had a gradient, such as the pooler of BERT.
    """

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model."""
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        with whole(self.model):
            if self.args.should_save:
                self._save(output_dir)

    def _load_from_checkpoint(self, checkpoint_path: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:
            load_shards(Path(checkpoint_path), self.model)
        elif has_adapter(self.model):
            load_trained(self.model, Path(checkpoint_path))
        else:
            super()._load_from_checkpoint(checkpoint_path)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_shards(Path(output_dir), self.model, self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.is_fsdp_enabled or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        load_shards(Path(checkpoint), self.model, self.optimizer.optimizer)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))
