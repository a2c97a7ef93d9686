"""Trees of spherical k-means.

- A point goes to the child whose centroid has the largest cosine, at every level, however long the vectors are.
- Points on separate axes get a cluster per axis; a node with too few points is not split.
- Every level is trained on a bounded sample, and the same seed gives the same tree.
- A tree survives its file; without faiss, the error says how to get it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mixfluence.clustering import tree as trees
from mixfluence.clustering.embeddings import Matrix, Points
from mixfluence.clustering.tree import Nodes, Tree, grow, spherical_kmeans
from mixfluence.errors import RecipeError


def directions(count: int, seed: int = 0, dimensions: int = 5) -> Matrix:
    points = np.random.default_rng(seed).normal(size=(count, dimensions))
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True), np.float32)


def grown(points: Matrix, levels: int, branching: int, seed: int = 0) -> tuple[Tree, Nodes]:
    nodes = np.zeros(len(points), np.int32)
    table = Points([points[: len(points) // 3].astype(np.float16), points[len(points) // 3 :].astype(np.float16)])
    return grow(table, nodes, levels=levels, branching=branching, seed=seed), nodes


def by_hand(tree: Tree, point: Matrix) -> int:
    node = 0
    while tree.first[node]:
        children = [child for child in range(len(tree)) if tree.parents[child] == node]
        node = max(children, key=lambda child: float(tree.centroids[child] @ point))
    return node


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_points_descend_to_the_largest_cosine(levels: int) -> None:
    points = directions(400)
    tree, nodes = grown(points, levels, 3)
    np.testing.assert_allclose(np.linalg.norm(tree.centroids, axis=1), 1, atol=1e-5)
    exact = points.astype(np.float16).astype(np.float32)
    assert nodes.tolist() == tree.leaves(exact).tolist() == [by_hand(tree, point) for point in exact]
    lengths = np.random.default_rng(1).uniform(0.1, 9, (400, 1)).astype(np.float32)
    np.testing.assert_array_equal(tree.leaves(exact * lengths), nodes)
    assert max(tree.path(int(node)).count(".") for node in nodes) == levels - 1


def test_the_structure_of_a_tree() -> None:
    tree, nodes = grown(directions(400), 3, 3)
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        assert 0 <= parent < node
        assert 0 <= node - tree.first[parent] < 3
        assert tree.path(node) == f"{tree.path(parent)}.{node - tree.first[parent]}".removeprefix("root.")
    assert len({tree.path(node) for node in range(len(tree))}) == len(tree)
    assert not tree.first[nodes].any()


def test_separate_axes_are_separate_clusters() -> None:
    axes = np.random.default_rng(0).integers(4, size=200)
    points = np.eye(4, dtype=np.float32)[axes] + np.random.default_rng(1).uniform(0, 0.1, (200, 4)).astype(np.float32)
    centroids = spherical_kmeans(points, 4, seed=3)
    assert sorted(centroids.argmax(axis=1).tolist()) == [0, 1, 2, 3]
    assert (centroids.max(axis=1) > 0.99).all()


@pytest.mark.parametrize(("count", "nodes"), [(15, 1), (16, 3)])
def test_a_node_with_too_few_points_is_a_leaf(count: int, nodes: int) -> None:
    tree, leaves = grown(directions(count), 1, 2)
    assert len(tree) == nodes
    assert leaves.any() == (nodes > 1)


def test_points_that_are_all_alike_need_not_be_told_apart() -> None:
    tree, nodes = grown(np.tile(directions(1), (100, 1)), 2, 2)
    assert np.isfinite(tree.centroids).all()
    assert len(set(nodes.tolist())) == 1


def test_the_seed_decides_the_tree() -> None:
    one, same, other = (grown(directions(300), 2, 4, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one[0].centroids, same[0].centroids)
    np.testing.assert_array_equal(one[1], same[1])
    assert not np.array_equal(one[0].centroids[: len(other[0])], other[0].centroids[: len(one[0])])


def test_no_more_than_a_sample_is_read_to_train_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(Points):
        taken: list[NDArray[np.int64]] = []  # noqa: RUF012

        def take(self, rows: NDArray[np.int64]) -> Matrix:
            self.taken.append(rows)
            return super().take(rows)

    monkeypatch.setattr(trees, "MOST_PER_CLUSTER", 10)
    nodes = np.zeros(500, np.int32)
    tree = grow(Watched([directions(500).astype(np.float16)]), nodes, levels=2, branching=2, seed=0)
    assert len(tree) == 7
    assert [len(rows) for rows in Watched.taken] == [20] * 4
    assert all((np.diff(rows) > 0).all() for rows in Watched.taken)
    halves = [set(tree.parents[nodes[rows]].tolist()) for rows in Watched.taken[2:]]
    assert halves == [{1}, {2}]


def test_a_tree_survives_its_file(tmp_path: Path) -> None:
    tree, nodes = grown(directions(200), 2, 3)
    tree.save(tmp_path / "tree.npz")
    loaded = Tree.load(tmp_path / "tree.npz")
    points = directions(50, seed=9)
    np.testing.assert_array_equal(loaded.leaves(points), tree.leaves(points))
    assert [loaded.path(int(node)) for node in nodes] == [tree.path(int(node)) for node in nodes]


def test_without_faiss_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(RecipeError, match=r"pip install 'mixfluence\[crisp\]'"):
        spherical_kmeans(directions(20), 2, seed=0)
