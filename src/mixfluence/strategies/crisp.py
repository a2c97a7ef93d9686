"""CRISP: clusters of training rows are drawn as often as the dev rows fall into them."""

from __future__ import annotations

from collections.abc import Mapping

from mixfluence.policy import Weights
from mixfluence.strategies.static import Static


class CRISP(Static):
    """Clustered importance sampling (Grangier et al., ICLR 2025): train on what looks like the dev rows.

    The "datasets" are the clusters that `mixfluence.clustering.partition` makes of the pool, with the weights it
    finds; nothing changes while training. Looks at the text of the dev rows, not at what helps them: prefer `InfDDS`
    when the useful rows need not look like the target, and `Static` when there are few dev rows or the pool has
    nothing like them.

    Cost: before training, one forward pass of a small encoder over all rows, and k-means; 0 training steps. Memory: 0
    parameter sizes.

    Args:
        weights: The probability of each cluster.
        max_epochs: Most passes over any cluster: a small one with many dev rows would be drawn over and over.
    """

    def __init__(self, weights: Mapping[str, float], *, max_epochs: float | None = None) -> None:
        super().__init__(Weights(weights), max_epochs=max_epochs)
