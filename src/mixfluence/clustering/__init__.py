"""The offline stage of CRISP: clusters of the training rows, weighted by the dev rows that fall into them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset, Features
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from mixfluence.clustering.tree import Nodes, Points, Tree, grow, merge
from mixfluence.data.cache import cached
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet, Subset, arrow_schema, join
from mixfluence.data.tokens import open_array
from mixfluence.embedding import Embedder, Matrix
from mixfluence.errors import RecipeError
from mixfluence.strategies.crisp import CRISP

logger = logging.getLogger(__name__)
CACHE_VERSION = 1


@dataclass(frozen=True)
class Partition:
    """Clusters to train on, and how often to draw each.

    `mixture` has the clusters with a weight, named like `pool/3.17`, or `nq/3.17` per dataset; `rows` has how many
    rows every cluster has of each dataset.
    """

    mixture: Mixture
    weights: dict[str, float]
    rows: dict[str, dict[str, int]]
    datasets: tuple[str, ...]

    def shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return how much of each dataset is drawn, given weights or counts of drawn clusters."""
        shares = dict.fromkeys(self.datasets, 0.0)
        for cluster, weight in weights.items():
            size = sum(self.rows[cluster].values())
            for name, rows in self.rows[cluster].items():
                shares[name] += weight * rows / size
        return shares

    @property
    def sources(self) -> dict[str, str]:
        """A dataset of each cluster of the mixture, for its prompts: those of a pool have the same."""
        return {cluster: next(iter(self.rows[cluster])) for cluster in self.mixture}


def partition(
    mixture: Mixture,
    targets: Mapping[str, RowSet],
    encoder: SentenceTransformer,
    crisp: CRISP,
    *,
    least_rows: int,
    seed: int = 0,
) -> Partition:
    """Cluster the training rows and weight each cluster by the dev rows that fall into it, by the keys of `CRISP`.

    Costs one forward pass over every row, once: embeddings and clusters are cached on disk. A small encoder is enough.
    Clusters of fewer than `least_rows` rows are merged with neighbours; use the batch size. With several processes,
    call it in the first one before the others.
    """
    if least_rows < 1 or not targets:
        raise RecipeError("partition: needs at least one dev set and least_rows of at least 1")
    dev = Mixture(targets)
    embedder = Embedder(encoder, crisp.texts)
    pools = {name: Mixture({name: rows}) for name, rows in mixture.items()}
    if crisp.per == "pool":
        pools = {"pool": mixture}
    shape = {"levels": crisp.levels, "branching": crisp.branching, "seed": seed}
    parts = [Clusters(name, pool, embedder, least_rows, **shape) for name, pool in pools.items()]
    weights = _weights(parts, [Points([embedder.vectors(rows)]) for rows in dev.values()], crisp.smoothing)
    chosen = np.split(weights > 0, np.cumsum([len(part.names) for part in parts])[:-1])
    drawn = {
        part.names[number]: rows
        for part, mask in zip(parts, chosen, strict=True)
        for number, rows in select_rows(part.datasets, part.numbers(), mask)
    }
    names = [name for part in parts for name in part.names]
    weighted = {name: weight for name, weight in zip(names, weights.tolist(), strict=True) if weight}
    logger.info("%d clusters, %d of them with a weight", len(names), len(weighted))
    rows = {
        cluster: {name: count for name, count in zip(part.datasets, counts, strict=True) if count}
        for part in parts
        for cluster, counts in zip(part.names, part.rows.tolist(), strict=True)
    }
    return Partition(Mixture(drawn), weighted, rows, tuple(mixture))


class Clusters:
    """The clusters of datasets that are clustered together: leaves of a tree, small ones merged."""

    def __init__(self, name: str, datasets: Mixture, embedder: Embedder, least_rows: int, **shape: int) -> None:
        self.datasets = datasets
        self._tree, self._leaves = _cluster(name, datasets, embedder, **shape)
        cuts = np.cumsum(list(datasets.sizes.values()))[:-1]
        per_node = np.stack([np.bincount(part, minlength=len(self._tree)) for part in np.split(self._leaves, cuts)])
        groups = merge(self._tree, per_node.sum(axis=0), least_rows)
        used, self._clusters = np.unique(groups, return_inverse=True)
        self.names = [f"{name}/{self._tree.path(node)}" for node in used.tolist()]
        # How many rows each cluster has of each dataset.
        self.rows: NDArray[np.int64] = np.zeros((len(used), len(datasets)), np.int64)
        np.add.at(self.rows, self._clusters, per_node.T)

    def assign(self, points: Matrix) -> tuple[NDArray[np.int64], Matrix]:
        """Return the cluster of each point, and its cosine with the centroid of its leaf."""
        leaves = self._tree.leaves(points)
        return self._clusters[leaves], np.einsum("ij,ij->i", points, self._tree.centroids[leaves])

    def numbers(self) -> NDArray[np.int32]:
        """Return the number of each row's cluster."""
        return self._clusters.astype(np.int32)[self._leaves]


def select_rows(
    datasets: Mixture, numbers: NDArray[np.integer[Any]], chosen: NDArray[np.bool_]
) -> Iterator[tuple[int, RowSet]]:
    """Yield the chosen clusters and their rows, given the cluster of each row.

    Texts are not copied, and tokenised once for all clusters.
    """
    pool, *others = datasets.values()
    if others:
        pool = join({name: replace(rows, rows=_cast(rows.rows)) for name, rows in datasets.items()})
    rows = np.flatnonzero(chosen[numbers])
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    sizes = np.bincount(numbers, minlength=len(chosen))[chosen]
    for number, members in zip(np.flatnonzero(chosen), np.split(rows, np.cumsum(sizes))[:-1], strict=True):
        # Row numbers and dataset fingerprints identify the rows, without reading their text again.
        digest = xxhash.xxh3_128(json.dumps(list(datasets.fingerprints.values())).encode())
        digest.update(members.tobytes())
        subset = Subset(pool, members)
        yield int(number), RowSet(pool.rows.select(members), digest.hexdigest(), subset=subset)


def _cluster(
    name: str, datasets: Mixture, embedder: Embedder, *, levels: int, branching: int, seed: int
) -> tuple[Tree, Nodes]:
    """Return the tree and the leaf of each row, from the cache if the same embeddings were clustered before."""
    vectors = [embedder.key(rows) for rows in datasets.values()]
    key = json.dumps([CACHE_VERSION, vectors, levels, branching, seed])

    def build(folder: Path) -> None:
        points = Points([embedder.vectors(rows) for rows in datasets.values()])
        logger.info("clustering %s: %d rows", name, len(points))
        nodes = np.lib.format.open_memmap(folder / "leaves.npy", "w+", np.int32, (len(points),))
        tree = grow(points, nodes, levels=levels, branching=branching, seed=seed)
        np.savez(folder / "tree.npz", **vars(tree))
        nodes.flush()

    def open_folder(folder: Path) -> tuple[Tree, Nodes]:
        with np.load(folder / "tree.npz", allow_pickle=False) as arrays:
            tree = Tree(arrays["centroids"], arrays["parents"], arrays["first"], int(arrays["branching"]))
        return tree, open_array(folder / "leaves.npy")

    return cached("clusters", key, open_folder, build)


def _cast(rows: Dataset) -> Dataset:
    """Return rows with the standard column types; a user's own may have wider scores."""
    features = Features.from_arrow_schema(arrow_schema())
    return rows if rows.features == features else rows.cast(features)


def _weights(parts: Sequence[Clusters], targets: Sequence[Points], smoothing: float) -> NDArray[np.float64]:
    """Return the mean over targets of the smoothed histogram over the clusters of all parts."""
    sizes = np.concatenate([part.rows.sum(axis=1) for part in parts])
    starts = np.cumsum([0, *(len(part.names) for part in parts)])[:-1]
    prior = smoothing * sizes / sizes.sum()
    histograms = []
    for points in targets:
        counts = prior.copy()
        for _, chunk in points.chunks():
            # The cluster of the part with the nearest leaf, numbered over all parts.
            clusters, cosines = zip(*(part.assign(chunk) for part in parts), strict=True)
            nearest = np.argmax(cosines, axis=0)
            own = starts[nearest] + np.stack(clusters)[nearest, np.arange(len(chunk))]
            counts += np.bincount(own, minlength=len(sizes))
        histograms.append(counts / counts.sum())
    return np.asarray(np.mean(histograms, axis=0))
