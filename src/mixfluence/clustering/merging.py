"""Clusters that are too small for a batch are drawn together with others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mixfluence.clustering.tree import Nodes, Tree


def merge(tree: Tree, rows: NDArray[np.int64], least_rows: int) -> Nodes:
    """Return the group of each leaf, named by a node; other nodes have the group of what is left below them.

    A leaf with rows enough is a group of its own. The small ones below a node are one group, named by that node, if
    they have rows enough together; if not, they wait for those of the node above. What still waits at the root joins
    the groups of the nearest centroids, or is the only group, the root's.

    Args:
        tree: The clusters.
        rows: Rows of each node; only leaves have any.
        least_rows: Rows that a group has at least, unless it is the root's.
    """
    waiting = rows.copy()
    groups = np.full(len(tree), -1, np.int32)
    for node in reversed(range(len(tree))):
        if waiting[node] >= least_rows:
            groups[node] = node
        elif node:
            waiting[tree.parents[node]] += waiting[node]
    for node in range(1, len(tree)):
        if groups[node] < 0:
            groups[node] = groups[tree.parents[node]]
    return _place_the_rest(tree, groups)


def _place_the_rest(tree: Tree, groups: Nodes) -> Nodes:
    placed = np.flatnonzero((groups >= 0) & (tree.first == 0))
    if not len(placed):
        return np.zeros_like(groups)
    rest = np.flatnonzero(groups < 0)
    groups[rest] = groups[placed[(tree.centroids[rest] @ tree.centroids[placed].T).argmax(axis=1)]]
    return groups
