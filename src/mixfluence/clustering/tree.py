"""Hierarchical spherical k-means: every cluster with enough rows is split again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mixfluence.embedding import ROWS_PER_CHUNK, Matrix
from mixfluence.strategies.base import check_faiss

Nodes = NDArray[np.int32]

# Rows per cluster: with fewer a node is not split; k-means is trained on at most that many.
MIN_PER_CLUSTER, MAX_PER_CLUSTER = 8, 256
ITERATIONS = 20


class Points:
    """The vectors of several datasets as one table that is read in chunks."""

    def __init__(self, vectors: Sequence[NDArray[np.float16]]) -> None:
        self._vectors = vectors
        self.starts = np.cumsum([0, *map(len, vectors)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> Matrix:
        """Return the vectors of these rows, which must be in ascending order."""
        cuts = np.searchsorted(rows, self.starts)
        parts = [
            vectors[rows[start:stop] - first]
            for vectors, first, start, stop in zip(self._vectors, self.starts[:-1], cuts[:-1], cuts[1:], strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)

    def chunks(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield all vectors in order, in chunks with their rows."""
        for vectors, first in zip(self._vectors, self.starts[:-1].tolist(), strict=True):
            for start in range(0, len(vectors), ROWS_PER_CHUNK):
                chunk = vectors[start : start + ROWS_PER_CHUNK].astype(np.float32)
                yield slice(first + start, first + start + len(chunk)), chunk


@dataclass(frozen=True)
class Tree:
    """Nodes in order of creation: the root is 0, and the children of a node have consecutive numbers.

    Centroids are unit vectors. The parent of the root is -1, the first child of a leaf is 0.
    """

    centroids: Matrix
    parents: Nodes
    first: Nodes
    branching: int

    def __len__(self) -> int:
        return len(self.parents)

    def descend(self, points: Matrix, nodes: Nodes) -> Nodes:
        """Move each point from its node to the child with the largest cosine; points in leaves stay."""
        moved = nodes.copy()
        for node, members in _by_node(nodes):
            if first := int(self.first[node]):
                children = self.centroids[first : first + self.branching]
                moved[members] = first + (points[members] @ children.T).argmax(axis=1)
        return moved

    def leaves(self, points: Matrix) -> Nodes:
        """Return the leaf of each point."""
        nodes = np.zeros(len(points), np.int32)
        while self.first[nodes].any():
            nodes = self.descend(points, nodes)
        return nodes

    def path(self, node: int) -> str:
        """Return the name of a node: the branch taken at each level, such as `3.17`."""
        branches: list[str] = []
        while node:
            parent = int(self.parents[node])
            branches.insert(0, str(node - int(self.first[parent])))
            node = parent
        return ".".join(branches) or "root"


def grow(points: Points, nodes: Nodes, *, levels: int, branching: int, seed: int) -> Tree:
    """Cluster points level by level, training each node on a sample of its points.

    `nodes` has a zero per point, possibly on disk, and is overwritten with the leaf of each point.
    """
    sample = _sample(len(points), MAX_PER_CLUSTER * branching, np.random.default_rng(seed))
    middle = points.take(sample).mean(axis=0, keepdims=True)
    middle /= np.linalg.norm(middle) or 1
    tree = Tree(middle, np.array([-1], np.int32), np.zeros(1, np.int32), branching)
    for _ in range(levels):
        tree = _split(tree, points, nodes, seed)
        for rows, chunk in points.chunks():
            nodes[rows] = tree.descend(chunk, np.asarray(nodes[rows]))
    return tree


def merge(tree: Tree, rows: NDArray[np.int64], least_rows: int) -> Nodes:
    """Merge clusters that are too small for a batch. Return the group of each leaf, named by a node.

    Small leaves below a node form one group if they have enough rows together; else they are passed to the node above.
    What is left at the root joins the groups of the nearest centroids, or is the only group.
    """
    left = rows.copy()
    groups = np.full(len(tree), -1, np.int32)
    for node in reversed(range(len(tree))):
        if left[node] >= least_rows:
            groups[node] = node
        elif node:
            left[tree.parents[node]] += left[node]
    for node in range(1, len(tree)):
        if groups[node] < 0:
            groups[node] = groups[tree.parents[node]]
    placed = np.flatnonzero((groups >= 0) & (tree.first == 0))
    if not len(placed):
        return np.zeros_like(groups)
    rest = np.flatnonzero(groups < 0)
    groups[rest] = groups[placed[(tree.centroids[rest] @ tree.centroids[placed].T).argmax(axis=1)]]
    return groups


def spherical_kmeans(points: Matrix, clusters: int, seed: int) -> Matrix:
    """Return unit-length centroids of points by cosine."""
    check_faiss()
    import faiss

    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=ITERATIONS,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    kmeans.train(points)
    return np.asarray(kmeans.centroids)


def _split(tree: Tree, points: Points, nodes: Nodes, seed: int) -> Tree:
    """Split every leaf with enough points."""
    centroids, parents, first = [tree.centroids], [tree.parents], tree.first.copy()
    size = len(tree)
    for node, members in _by_node(nodes):
        if len(members) < MIN_PER_CLUSTER * tree.branching:
            continue
        random = np.random.default_rng([seed, node])
        sample = members[_sample(len(members), MAX_PER_CLUSTER * tree.branching, random)]
        centroids.append(spherical_kmeans(points.take(sample), tree.branching, int(random.integers(2**31))))
        parents.append(np.full(tree.branching, node, np.int32))
        first[node] = size
        size += tree.branching
    first = np.append(first, np.zeros(size - len(tree), np.int32))
    return Tree(np.concatenate(centroids), np.concatenate(parents), first, tree.branching)


def _by_node(nodes: Nodes) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each node that has points with their positions, both in ascending order."""
    order = np.argsort(nodes, kind="stable")
    cuts = np.flatnonzero(np.diff(nodes[order])) + 1
    for members in np.split(order, cuts):
        yield int(nodes[members[0]]), members


def _sample(count: int, limit: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw at most `limit` of `count` positions, in ascending order."""
    return np.arange(count) if count <= limit else np.sort(random.choice(count, limit, replace=False))
