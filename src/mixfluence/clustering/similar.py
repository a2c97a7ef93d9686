"""Which training datasets look like the dev sets: a start that knows them before anything is measured."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from mixfluence.clustering.embeddings import Embedder, Matrix
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.policy import Vector
from mixfluence.strategies.base import SAMPLED_ROWS

logger = logging.getLogger(__name__)
NEIGHBOURS = 10
# Dev rows that are compared with all training rows at once.
ROWS_AT_ONCE = 256


def similar_shares(mixture: Mixture, targets: Mapping[str, RowSet], encoder: SentenceTransformer) -> dict[str, float]:
    """Return the share of each dataset by similarity to the targets, which count the same: the start `Similar`.

    A dev row is divided among the datasets of its ten nearest rows in samples of all datasets. A dataset with few rows
    counts as much as one with many: a neighbour weighs by one over the size of its sample.
    """
    embedder = Embedder(encoder, "both")

    def vectors(rows: RowSet) -> Matrix:
        return embedder.vectors(rows.sample(SAMPLED_ROWS)).astype(np.float32)

    pool = [vectors(rows) for rows in mixture.values()]
    sizes = np.array([len(rows) for rows in pool])
    owners = np.repeat(np.arange(len(pool)), sizes)
    joined = np.concatenate(pool)
    found = [_shares(vectors(rows), joined, owners, 1 / sizes) for rows in Mixture(targets).values()]
    shares = dict(zip(mixture, np.mean(found, axis=0).tolist(), strict=True))
    logger.info("similarity to dev: %s", ", ".join(f"{name} {share:.3f}" for name, share in shares.items()))
    return shares


def _shares(dev: Matrix, pool: Matrix, owners: NDArray[np.int64], weights: Vector) -> Vector:
    """Return the mean over dev rows of the weighted parts of datasets among the nearest rows of the pool."""
    count = min(NEIGHBOURS, len(pool))
    total = np.zeros(len(weights))
    for start in range(0, len(dev), ROWS_AT_ONCE):
        cosines = dev[start : start + ROWS_AT_ONCE] @ pool.T
        nearest = owners[np.argpartition(-cosines, count - 1, axis=1)[:, :count]]
        parts = (nearest[:, :, None] == np.arange(len(weights))).sum(axis=1) * weights
        total += (parts / parts.sum(axis=1, keepdims=True)).sum(axis=0)
    return np.asarray(total / len(dev))
