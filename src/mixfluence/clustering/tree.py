"""A tree of clusters: spherical k-means, and again inside every cluster that has rows enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mixfluence.clustering.embeddings import Matrix, Points
from mixfluence.errors import RecipeError

Nodes = NDArray[np.int32]

# With fewer rows per cluster than this a node is not split; k-means looks at no more than that many.
LEAST_PER_CLUSTER, MOST_PER_CLUSTER = 8, 256
ITERATIONS = 20


@dataclass(frozen=True)
class Tree:
    """Nodes in the order they were made: the root is 0, and the children of a node have successive numbers.

    Attributes:
        centroids: One unit vector per node.
        parents: The node above; -1 above the root.
        first: The first child; 0 for a leaf.
        branching: Children of a node that is split.
    """

    centroids: Matrix
    parents: Nodes
    first: Nodes
    branching: int

    def __len__(self) -> int:
        return len(self.parents)

    def descend(self, points: Matrix, nodes: Nodes) -> Nodes:
        """Move each point from its node to the child whose centroid has the largest cosine; leaves stay."""
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
        """Return a node's name: the number of the branch taken at each level, as in `3.17`."""
        branches: list[str] = []
        while node:
            parent = int(self.parents[node])
            branches.insert(0, str(node - int(self.first[parent])))
            node = parent
        return ".".join(branches) or "root"

    def save(self, path: Path) -> None:
        """Write the tree to a file."""
        with path.open("wb") as file:
            np.savez(file, centroids=self.centroids, parents=self.parents, first=self.first, branching=self.branching)

    @classmethod
    def load(cls, path: Path) -> Tree:
        """Read a tree that was written by `save`."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["centroids"], arrays["parents"], arrays["first"], int(arrays["branching"]))


def grow(points: Points, nodes: Nodes, *, levels: int, branching: int, seed: int) -> Tree:
    """Cluster points, level by level, each node on a sample of its points.

    Args:
        points: All of them; read once per level.
        nodes: As many zeros, perhaps on disk. They are overwritten with the leaf of each point.
        levels: Depth of the tree.
        branching: Clusters that a node is split into.
        seed: Decides samples and starts of k-means.
    """
    sample = _sample(len(points), MOST_PER_CLUSTER * branching, np.random.default_rng(seed))
    middle = points.take(sample).mean(axis=0, keepdims=True)
    middle /= np.linalg.norm(middle) or 1
    tree = Tree(middle, np.array([-1], np.int32), np.zeros(1, np.int32), branching)
    for _ in range(levels):
        tree = _split(tree, points, nodes, seed)
        for rows, chunk in points.chunks():
            nodes[rows] = tree.descend(chunk, np.asarray(nodes[rows]))
    return tree


def spherical_kmeans(points: Matrix, clusters: int, seed: int) -> Matrix:
    """Return unit centroids that points are near to by cosine.

    Raises:
        RecipeError: If faiss is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise RecipeError("clusters need faiss: pip install 'mixfluence[crisp]'") from error
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
    """Give children to every leaf that has points enough. One that had too few before has too few again."""
    centroids, parents, first = [tree.centroids], [tree.parents], tree.first.copy()
    size = len(tree)
    for node, members in _by_node(nodes):
        if len(members) < LEAST_PER_CLUSTER * tree.branching:
            continue
        random = np.random.default_rng([seed, node])
        sample = members[_sample(len(members), MOST_PER_CLUSTER * tree.branching, random)]
        centroids.append(spherical_kmeans(points.take(sample), tree.branching, int(random.integers(2**31))))
        parents.append(np.full(tree.branching, node, np.int32))
        first[node] = size
        size += tree.branching
    first = np.append(first, np.zeros(size - len(tree), np.int32))
    return Tree(np.concatenate(centroids), np.concatenate(parents), first, tree.branching)


def _by_node(nodes: Nodes) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each node that has points, in order, with its points in order."""
    order = np.argsort(nodes, kind="stable")
    cuts = np.flatnonzero(np.diff(nodes[order])) + 1
    for members in np.split(order, cuts):
        yield int(nodes[members[0]]), members


def _sample(count: int, most: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw at most so many of `count` places, in order."""
    return np.arange(count) if count <= most else np.sort(random.choice(count, most, replace=False))
