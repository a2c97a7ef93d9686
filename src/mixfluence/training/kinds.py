"""Trainers of sparse encoders, multi-vector encoders and cross-encoders on a mixture, and all four by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    MultiVectorEncoderTrainer,
    SparseEncoderTrainer,
)
from sentence_transformers.cross_encoder.data_collator import CrossEncoderDataCollator
from torch import Tensor, nn

from mixfluence.training.batches import prompts_of
from mixfluence.training.trainer import MixtureMixin, MixtureTrainer


class SparseMixtureTrainer(MixtureMixin, SparseEncoderTrainer):
    """Trains a sparse encoder (SPLADE) on a mixture; arguments are those of `MixtureTrainer`."""

    kind = "sparse"


class MultiVectorMixtureTrainer(MixtureMixin, MultiVectorEncoderTrainer):
    """Trains a multi-vector encoder (ColBERT) on a mixture; arguments are those of `MixtureTrainer`."""

    kind = "multi-vector"


class RerankerMixtureTrainer(MixtureMixin, CrossEncoderTrainer):
    """Trains a cross-encoder on a mixture; arguments are those of `MixtureTrainer`.

    Texts are not tokenised before training, because a cross-encoder tokenises a query together with a passage.
    """

    kind = "reranker"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.model.register_forward_hook(_as_dict)

    def get_data_collator(
        self, model: CrossEncoder, args: CrossEncoderTrainingArguments, processing_class: Any = None
    ) -> CrossEncoderDataCollator:
        """Return a collator of dev rows that prepends the prompts, which may differ by column."""
        return _PromptingCollator(model.preprocess, args=args, datasets=[*self.mixture, *(self.dev or ())])

    def collect_features(self, inputs: dict[str, Any]) -> tuple[list[list[str]], Tensor | None]:
        texts = [value for name, value in inputs.items() if name != "label" and isinstance(value, list)]
        return texts, inputs.get("label")


def _as_dict(_: nn.Module, __: Any, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output of a cross-encoder as a dict: torch finds no tensors in the class of its tokenizer's outputs.

    Several processes would take all parameters for unused.
    """
    return dict(output)


@dataclass
class _PromptingCollator(CrossEncoderDataCollator):
    args: Any = None
    datasets: list[str] = field(default_factory=list)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        prompts = prompts_of(self.args, features[0].get("dataset_name", ""), self.datasets)
        prompted = {"anchor": prompts.query, "positive": prompts.document}
        rows = [{name: prompted.get(name, "") + text for name, text in row.items()} for row in features]
        batch: dict[str, Any] = super().__call__(rows)
        return batch


# By the words of recipes.
TRAINERS_BY_KIND: dict[str, type[MixtureMixin]] = {
    trainer.kind: trainer
    for trainer in (MixtureTrainer, SparseMixtureTrainer, MultiVectorMixtureTrainer, RerankerMixtureTrainer)
}
