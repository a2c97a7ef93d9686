"""CRISP's offline stage: a mixture of datasets becomes a mixture of clusters, weighted by the dev sets."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from mixfluence.clustering.embeddings import Embedder, Matrix, Points, Texts
from mixfluence.clustering.parts import Part
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet
from mixfluence.errors import RecipeError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Partition:
    """Clusters to train on and how often to draw each.

    Attributes:
        mixture: The rows of every cluster that has a weight, named like `pool/3.17`, or `nq/3.17` per dataset.
        weights: The probability of each cluster of the mixture.
        rows: Rows of each cluster by dataset, clusters without a weight included.
        datasets: The datasets that were cut into clusters.
    """

    mixture: Mixture
    weights: dict[str, float]
    rows: dict[str, dict[str, int]]
    datasets: tuple[str, ...]

    @property
    def sources(self) -> dict[str, str | None]:
        """The dataset that each cluster of the mixture is of; None for a cluster of several."""
        return {
            cluster: next(iter(rows)) if len(rows := self.rows[cluster]) == 1 else None for cluster in self.mixture
        }

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return how much of each dataset is drawn when clusters are drawn by these weights, or so many times."""
        shares = dict.fromkeys(self.datasets, 0.0)
        for cluster, weight in weights.items():
            size = sum(self.rows[cluster].values())
            for name, rows in self.rows[cluster].items():
                shares[name] += weight * rows / size
        return shares


def partition(
    mixture: Mixture,
    targets: Mapping[str, RowSet],
    encoder: SentenceTransformer,
    *,
    levels: int = 1,
    branching: int = 32,
    per: Literal["pool", "dataset"] = "pool",
    texts: Texts = "both",
    smoothing: float = 0.0,
    least_rows: int,
    seed: int = 0,
) -> Partition:
    """Cluster the training rows and weigh each cluster by the dev rows that fall into it.

    Costs one forward pass of the encoder over every row, once: vectors, clusters and the cluster of each row are kept
    on disk, and memory holds a chunk of vectors and a few numbers per row. On several processes let the first come
    first, so that the others find its clusters.

    Args:
        mixture: The training datasets.
        targets: The dev sets; each counts alike, whatever its size.
        encoder: Gives the vectors; a small one will do.
        levels: Depth of the tree: at most `branching ** levels` clusters.
        branching: Clusters that a cluster is split into.
        per: Cluster the whole pool, or every dataset apart, where rows of two datasets must not share a batch. A dev
            row then belongs to the nearest of all datasets' clusters.
        texts: What stands for a row: its anchor, its positive, or the mean of both.
        smoothing: Dev rows, spread over the clusters like the training rows, that are added to those of every target:
            for many clusters and few dev rows. 0 for the plain histogram, which never draws most of many clusters.
        least_rows: Smaller clusters are drawn together with their neighbours; give the batch size.
        seed: Decides the samples and the starts of k-means.

    Raises:
        RecipeError: If an option is out of range, there is no dev set, or faiss is not installed.
        DataError: If a dev set is empty.
    """
    _check_least(levels=(levels, 1), branching=(branching, 2), least_rows=(least_rows, 1), smoothing=(smoothing, 0))
    _check_choice("per", per, "pool", "dataset")
    _check_choice("texts", texts, "both", "query", "passage")
    if not targets:
        raise RecipeError("clusters are weighted by dev sets: give at least one")
    dev = Mixture(targets)
    embedder = Embedder(encoder, texts)
    embedder.encode(chain(mixture.values(), dev.values()))
    pools = {"pool": mixture} if per == "pool" else {name: Mixture({name: rows}) for name, rows in mixture.items()}
    parts = [
        Part(name, pool, embedder, levels=levels, branching=branching, least_rows=least_rows, seed=seed)
        for name, pool in pools.items()
    ]
    weights = _weights(parts, [Points([embedder.vectors(rows)]) for rows in dev.values()], smoothing)
    chosen = np.split(weights > 0, np.cumsum([len(part.names) for part in parts])[:-1])
    drawn = chain.from_iterable(part.row_sets(mask) for part, mask in zip(parts, chosen, strict=True))
    names = [name for part in parts for name in part.names]
    weighted = {name: weight for name, weight in zip(names, weights.tolist(), strict=True) if weight}
    logger.info("%d clusters, %d of them with a weight", len(names), len(weighted))
    return Partition(Mixture(drawn), weighted, _rows_by_dataset(parts), tuple(mixture))


def _weights(parts: Sequence[Part], targets: Sequence[Points], smoothing: float) -> NDArray[np.float64]:
    """Return the mean over targets of the smoothed histogram over the clusters of all parts."""
    sizes = np.concatenate([part.rows.sum(axis=1) for part in parts])
    prior = smoothing * sizes / sizes.sum()
    histograms = []
    for points in targets:
        counts = prior.copy()
        for _, chunk in points.chunks():
            counts += np.bincount(_nearest(parts, chunk), minlength=len(sizes))
        histograms.append(counts / counts.sum())
    return np.asarray(np.mean(histograms, axis=0))


def _nearest(parts: Sequence[Part], points: Matrix) -> NDArray[np.int64]:
    """Return each point's cluster, counted through all parts: that of the part whose leaf is nearest."""
    starts = np.cumsum([0, *(len(part.names) for part in parts)])[:-1]
    clusters, cosines = zip(*(part.assign(points) for part in parts), strict=True)
    nearest = np.argmax(cosines, axis=0)
    return np.asarray(starts[nearest] + np.stack(clusters)[nearest, np.arange(len(points))])


def _rows_by_dataset(parts: Sequence[Part]) -> dict[str, dict[str, int]]:
    return {
        cluster: {name: count for name, count in zip(part.datasets, counts, strict=True) if count}
        for part in parts
        for cluster, counts in zip(part.names, part.rows.tolist(), strict=True)
    }


def _check_least(**options: tuple[float, int]) -> None:
    for name, (value, least) in options.items():
        if not least <= value < math.inf:
            raise RecipeError(f"{name} must be a number of at least {least}, found {value}")


def _check_choice(name: str, value: Any, *choices: str) -> None:
    if value not in choices:
        raise RecipeError(f"{name} must be one of {', '.join(choices)}, found {value!r}")
