"""One tree of clusters and the datasets it was grown on: the whole pool, or one dataset of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash
from datasets import Dataset, Features, concatenate_datasets
from numpy.typing import NDArray

from mixfluence.clustering.embeddings import Embedder, Matrix, Points
from mixfluence.clustering.merging import merge
from mixfluence.clustering.tree import Nodes, Tree, grow
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import RowSet, Subset, arrow_schema, cache_root
from mixfluence.files import replacing

logger = logging.getLogger(__name__)
CACHE_VERSION = 1


class Part:
    """Datasets that are clustered together. Clusters are numbered; a cluster is a leaf or several that were merged.

    Args:
        name: Stands before the names of its clusters.
        datasets: Whose rows are clustered.
        embedder: Gives the vectors.
        levels: Depth of the tree.
        branching: Clusters that a cluster is split into.
        least_rows: Rows that a cluster has at least, if there are so many.
        seed: Decides the clusters.

    Attributes:
        names: Of the clusters.
        rows: Rows of each cluster (down) in each dataset (across).
    """

    def __init__(
        self,
        name: str,
        datasets: Mixture,
        embedder: Embedder,
        *,
        levels: int,
        branching: int,
        least_rows: int,
        seed: int,
    ) -> None:
        self.name, self.datasets = name, datasets
        self._tree, self._leaves = _cluster(name, datasets, embedder, levels=levels, branching=branching, seed=seed)
        cuts = np.cumsum(list(datasets.sizes.values()))[:-1]
        per_node = np.stack([np.bincount(part, minlength=len(self._tree)) for part in np.split(self._leaves, cuts)])
        groups = merge(self._tree, per_node.sum(axis=0), least_rows)
        used, self._clusters = np.unique(groups, return_inverse=True)
        self.names = [f"{name}/{self._tree.path(node)}" for node in used.tolist()]
        self.rows: NDArray[np.int64] = np.zeros((len(used), len(datasets)), np.int64)
        np.add.at(self.rows, self._clusters, per_node.T)

    def assign(self, points: Matrix) -> tuple[NDArray[np.int64], Matrix]:
        """Return the number of each point's cluster and the cosine of its leaf's centroid."""
        leaves = self._tree.leaves(points)
        return self._clusters[leaves], np.einsum("ij,ij->i", points, self._tree.centroids[leaves])

    def row_sets(self, chosen: NDArray[np.bool_]) -> Iterator[tuple[str, RowSet]]:
        """Yield the names and rows of chosen clusters. No text is copied, and none tokenised for a cluster alone."""
        pool = concatenate_datasets([_same_types(dataset.rows) for dataset in self.datasets.values()])
        clusters = self._clusters.astype(np.int32)[self._leaves]
        rows = np.flatnonzero(chosen[clusters])
        rows = rows[np.argsort(clusters[rows], kind="stable")]
        sizes = self.rows.sum(axis=1)[chosen]
        for number, members in zip(np.flatnonzero(chosen), np.split(rows, np.cumsum(sizes))[:-1], strict=True):
            # Which rows of which content: that names the result, and is cheaper than reading the text again.
            digest = xxhash.xxh3_128(json.dumps(list(self.datasets.fingerprints.values())).encode())
            digest.update(members.tobytes())
            yield self.names[number], RowSet(pool.select(members), digest.hexdigest(), subsets=self._subsets(members))

    def _subsets(self, members: NDArray[np.int64]) -> tuple[Subset, ...]:
        """Return the rows of a cluster, which rise, by dataset."""
        starts = np.cumsum([0, *self.datasets.sizes.values()])[:-1]
        parts = np.split(members, np.searchsorted(members, starts[1:]))
        datasets = zip(self.datasets.values(), parts, starts, strict=True)
        return tuple(Subset(dataset, rows - start) for dataset, rows, start in datasets if len(rows))


def _cluster(
    name: str, datasets: Mixture, embedder: Embedder, *, levels: int, branching: int, seed: int
) -> tuple[Tree, Nodes]:
    """Return the tree and the leaf of each row, from disk when the same vectors were clustered before."""
    vectors = [embedder.key(rows) for rows in datasets.values()]
    key = json.dumps([CACHE_VERSION, vectors, levels, branching, seed])
    folder = cache_root() / "clusters" / xxhash.xxh3_128_hexdigest(key.encode())
    tree, leaves = folder / "tree.npz", folder / "leaves.npy"
    if not leaves.exists():
        points = Points([embedder.vectors(rows) for rows in datasets.values()])
        logger.info("clustering %s: %d rows", name, len(points))
        _grow_files(points, tree, leaves, levels=levels, branching=branching, seed=seed)
    return Tree.load(tree), np.load(leaves, mmap_mode="r", allow_pickle=False).view(np.ndarray)


def _grow_files(points: Points, tree: Path, leaves: Path, *, levels: int, branching: int, seed: int) -> None:
    # The tree's file takes its name first: the leaves, whose file tells that both are there, mean nothing without it.
    with replacing(leaves) as unfinished, replacing(tree) as temporary:
        nodes = np.lib.format.open_memmap(unfinished, "w+", np.int32, (len(points),))
        grow(points, nodes, levels=levels, branching=branching, seed=seed).save(temporary)
        nodes.flush()


def _same_types(rows: Dataset) -> Dataset:
    """Return rows with the types all datasets have; a user's own may have wider scores."""
    features = Features.from_arrow_schema(arrow_schema())
    return rows if rows.features == features else rows.cast(features)
