"""Small clusters are merged.

- Every leaf has one group, whose rows are those of its leaves; a group has rows enough, unless it is the only one.
- A leaf with rows enough stays apart from other such leaves.
- Small siblings go together first, then those of the level above; what is left joins the nearest centroid.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mixfluence.clustering.merging import merge
from mixfluence.clustering.tree import Tree


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
