"""CRISP: clusters of training rows are drawn as often as dev rows fall into them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from mixfluence.schema import NonNegative
from mixfluence.strategies.base import check_faiss, load_named_encoder
from mixfluence.strategies.static import EmbeddingStrategy

if TYPE_CHECKING:
    from mixfluence.clustering import Partition
    from mixfluence.data.mixture import Mixture
    from mixfluence.recipe import Recipe

logger = logging.getLogger(__name__)


class CRISP(EmbeddingStrategy):
    """Clustered importance sampling (Grangier et al., ICLR 2025): train on what looks like the dev rows.

    The pool is divided into clusters before training, and each is drawn by its share of the dev rows; nothing changes
    during training. It compares texts, not what helps: prefer `InfDDS` when the useful rows need not look
    like the target, and `Static` when there are few dev rows or the pool has nothing like them. In a script, call
    `mixfluence.partition` with it and train with `Static(init=Weights(found.weights))` on `found.mixture`.

    Cost: 0 training steps, and one forward pass of the encoder over all rows before training.
    Memory: 0 parameter sizes.

    Attributes:
        levels: Levels of the cluster tree.
        branching: Clusters of a level; there are branching ** levels in all.
        per: Cluster the whole `pool`, or each `dataset` by itself.
        smoothing: Dev rows added to every cluster.
        max_epochs: Most passes over any cluster: a small one with many dev rows would be repeated many times.
    """

    title = "CRISP"
    needs_dev = True
    name: Literal["crisp"] = "crisp"
    levels: Annotated[int, Field(ge=1, le=3)] = 1
    branching: Annotated[int, Field(ge=2, le=2**16)] = 32
    per: Literal["pool", "dataset"] = "pool"
    smoothing: NonNegative = 0.0

    @property
    def label(self) -> str:
        return f"{self.title}-{self.branching**self.levels}"

    @property
    def start_label(self) -> str:
        """Clusters have no initial distribution over datasets."""
        return "clusters"

    def check(self, recipe: Recipe) -> None:
        """Refuse clusters of datasets with different settings."""
        super().check(recipe)
        for key in ("query_prompt", "passage_prompt", "loss", "batch_size", "hard_negatives"):
            values = [getattr(source, key) for source in recipe.train.values()]
            if self.per == "pool" and any(value != values[0] for value in values):
                raise ValueError(f"strategy: clusters of the whole pool need one {key}; set per: dataset")

    def divide(self, mixture: Mixture, targets: Mapping[str, Any], recipe: Recipe, least_rows: int) -> Partition:
        from mixfluence.clustering import partition

        logger.info("clustering %d rows by %s", sum(mixture.sizes.values()), self.encoder or recipe.model.name)
        encoder = load_named_encoder(self.encoder, recipe)
        return partition(mixture, targets, encoder, self, least_rows=least_rows, seed=recipe.seed)

    def encoded_rows(self, train: Mapping[str, int], dev: Mapping[str, int]) -> int:
        check_faiss()
        return sum(train.values()) + sum(dev.values())
