"""Hierarchical spherical k-means, and merging of small clusters.

- A point goes to the child with the largest cosine at every level, whatever the length of its vector.
- Points on separate axes get a cluster per axis; a node with too few points is not split.
- Every level is trained on a bounded sample, and the same seed gives the same tree.
- A tree is read as it was written; without faiss, the error names the extra to install.
- Merging: every leaf has one group; a group has enough rows unless it is the only one. A leaf with enough rows stays
  separate. Small siblings are merged first, then with the level above; the rest joins the nearest centroid.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mixfluence.clustering import tree as trees
from mixfluence.clustering.tree import Nodes, Points, Tree, grow, merge, spherical_kmeans
from mixfluence.embedding import Matrix
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

    monkeypatch.setattr(trees, "MAX_PER_CLUSTER", 10)
    nodes = np.zeros(500, np.int32)
    tree = grow(Watched([directions(500).astype(np.float16)]), nodes, levels=2, branching=2, seed=0)
    assert len(tree) == 7
    assert [len(rows) for rows in Watched.taken] == [20] * 4
    assert all((np.diff(rows) > 0).all() for rows in Watched.taken)
    halves = [set(tree.parents[nodes[rows]].tolist()) for rows in Watched.taken[2:]]
    assert halves == [{1}, {2}]


def test_without_faiss_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(RecipeError, match=r"pip install 'mixfluence\[crisp\]'"):
        spherical_kmeans(directions(20), 2, seed=0)


def tree_of(splits: list[int], branching: int, centroids: NDArray[np.float64] | None = None) -> Tree:
    """Return a tree in which the nodes `splits`, in this order, are split."""
    size = 1 + branching * len(splits)
    parents, first = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    for number, node in enumerate(splits):
        first[node] = 1 + number * branching
        parents[first[node] : first[node] + branching] = node
    if centroids is None:
        centroids = np.random.default_rng(size).normal(size=(size, 3))
    return Tree(centroids.astype(np.float32), parents, first, branching)


@st.composite
def trees_with_rows(draw: st.DrawFn) -> tuple[Tree, NDArray[np.int64]]:
    branching = draw(st.integers(2, 4))
    splits: list[int] = []
    leaves = [0]
    for _ in range(draw(st.integers(0, 6))):
        node = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        leaves += range(1 + branching * len(splits), 1 + branching * (len(splits) + 1))
        splits.append(node)
    tree = tree_of(splits, branching)
    rows = np.zeros(len(tree), np.int64)
    rows[leaves] = draw(st.lists(st.integers(0, 12), min_size=len(leaves), max_size=len(leaves)))
    rows[leaves[0]] += 1
    return tree, rows


def ancestors(tree: Tree, node: int) -> list[int]:
    return [node, *ancestors(tree, int(tree.parents[node]))] if node > 0 else [0]


@given(trees_with_rows(), st.integers(1, 15))
def test_no_row_is_lost_and_every_group_has_rows_enough(pair: tuple[Tree, NDArray[np.int64]], least: int) -> None:
    tree, rows = pair
    before = rows.copy()
    groups = merge(tree, rows, least)
    np.testing.assert_array_equal(rows, before)
    leaves = np.flatnonzero(tree.first == 0)
    assert groups.shape == (len(tree),)
    assert ((groups >= 0) & (groups < len(tree))).all()
    sizes = np.bincount(groups[leaves], rows[leaves], minlength=len(tree))
    assert sizes.sum() == rows.sum()
    used = np.unique(groups)
    assert set(used) == set(groups[leaves])
    assert (sizes[used] >= least).all() or used.tolist() == [0]
    for leaf in leaves[rows[leaves] >= least]:
        assert groups[leaf] == leaf


@given(trees_with_rows(), st.integers(1, 15))
def test_a_small_leaf_goes_no_further_up_than_it_must(pair: tuple[Tree, NDArray[np.int64]], least: int) -> None:
    tree, rows = pair
    groups = merge(tree, rows, least)
    leaves = np.flatnonzero(tree.first == 0).tolist()
    for node in range(1, len(tree)):
        below = [leaf for leaf in leaves if node in ancestors(tree, leaf)]
        away = [leaf for leaf in below if node not in ancestors(tree, int(groups[leaf]))]
        assert sum(rows[leaf] for leaf in away) < least


def test_siblings_first_then_the_level_above() -> None:
    # Below the root: 1, 2, 3; below 1: 4, 5, 6; below 2: 7, 8, 9.
    tree = tree_of([0, 1, 2], 3)
    rows = np.array([0, 0, 0, 2, 9, 3, 2, 9, 1, 1])
    # 5 and 6 make five together; 8 and 9 do not, but do so with 3.
    assert merge(tree, rows, 4)[3:].tolist() == [0, 4, 1, 1, 7, 0, 0]


def test_what_is_left_joins_the_nearest_centroid() -> None:
    angles = np.array([0, 0, 1.0, 2.0, 2.2])
    tree = tree_of([0], 4, np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert merge(tree, np.array([0, 9, 9, 9, 1]), 4)[1:].tolist() == [1, 2, 3, 3]
    assert merge(tree, np.array([0, 9, 9, 0, 1]), 4)[1:].tolist() == [1, 2, 2, 2]


def test_too_few_rows_in_all_are_one_group() -> None:
    assert merge(tree_of([0, 1], 2), np.array([0, 0, 2, 1, 1]), 5).tolist() == [0] * 5
    assert merge(tree_of([], 2), np.array([3]), 5).tolist() == [0]
