"""Chameleon: datasets are drawn by how unique, or how common, their texts are; nothing is trained to find out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mixfluence.policy import Vector, softmax
from mixfluence.schema import Count
from mixfluence.strategies.base import load_named_encoder
from mixfluence.strategies.static import EmbeddingStrategy

if TYPE_CHECKING:
    from mixfluence.clustering import Partition
    from mixfluence.data.mixture import Mixture
    from mixfluence.recipe import Recipe

logger = logging.getLogger(__name__)
# Sharpness of the weights, as published.
UNIQUE_TEMPERATURE, COMMON_TEMPERATURE = 0.2, 5.0


class Chameleon(EmbeddingStrategy):
    """Kernel ridge leverage scores of the datasets (Xie, Tonin and Cevher, ICML 2025).

    K is the Gram matrix of the datasets' mean embeddings, centred, and S the diagonal of K (K + r I)^-1, scaled to sum
    to one. S is high for a dataset unlike the others. As published for fine-tuning, weights are softmax(S / 0.2); as
    for pretraining, which favours what datasets have in common, softmax(1 / (5 S)). Nothing changes during
    training.

    It compares the datasets with each other and never with a target, so it needs no dev set: prefer `CRISP` or
    `InfDDS` when there is one. It cannot tell a rare domain from noise.

    As published, embeddings are hidden states of a proxy model trained for it. Here they are those of a small encoder,
    of unit length, so the ridge r is the mean of the diagonal of K.

    Cost: 0 training steps, and one forward pass of a small encoder over a sample of the rows. Memory: 0 parameter
    sizes.

    Attributes:
        favour: `unique` datasets or `common` ones.
        rows: Rows of each dataset that are encoded, evenly spaced.
    """

    title = "Chameleon"
    name: Literal["chameleon"] = "chameleon"
    favour: Literal["unique", "common"] = "unique"
    rows: Count = 2048

    @property
    def start_label(self) -> str:
        return self.favour

    def encoded_rows(self, train: Mapping[str, int], dev: Mapping[str, int]) -> int:
        return sum(min(size, self.rows) for size in train.values())

    def divide(self, mixture: Mixture, targets: Mapping[str, Any], recipe: Recipe, least_rows: int) -> Partition:
        """Return the datasets themselves with their weights."""
        from mixfluence.clustering import Partition
        from mixfluence.embedding import Embedder

        embedder = Embedder(load_named_encoder(self.encoder, recipe), self.texts)
        means = []
        for rows in mixture.values():
            means.append(embedder.vectors(rows.sample(self.rows)).astype(np.float64).mean(axis=0))
        scores = leverage_scores(np.array(means))
        logger.info("leverage: %s", ", ".join(f"{name} {s:.3f}" for name, s in zip(mixture, scores, strict=True)))
        found = dict(zip(mixture, leverage_weights(scores, self.favour).tolist(), strict=True))
        return Partition(mixture, found, {name: {name: size} for name, size in mixture.sizes.items()}, tuple(mixture))


def leverage_scores(means: Vector) -> Vector:
    """Return the ridge leverage score of each dataset, summing to one, given its mean vector."""
    centred = means - means.mean(axis=0)
    kernel = centred @ centred.T
    scale = float(np.diag(kernel).mean())
    if scale == 0:
        return np.full(len(means), 1 / len(means))
    # Both are symmetric and have the same eigenvectors, so the order of the product does not matter.
    scores = np.diag(np.linalg.solve(kernel + scale * np.eye(len(means)), kernel))
    return np.asarray(scores / scores.sum())


def leverage_weights(scores: Vector, favour: str) -> Vector:
    """Return the probability of each dataset."""
    if favour == "unique":
        return softmax(scores / UNIQUE_TEMPERATURE)
    return softmax(1 / np.maximum(scores, 1e-12) / COMMON_TEMPERATURE)
