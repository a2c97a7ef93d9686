"""DoReMi: more weight where the loss exceeds that of a reference model."""

from __future__ import annotations

import numpy as np

from mixfluence.policy import Vector
from mixfluence.strategies.group_dro import GroupDRO


class DoReMi(GroupDRO):
    """Group-DRO on the excess loss of a proxy over a reference (Xie et al. 2023); see `GroupDRO` for the step.

    The score of a batch is the mean over its queries of max(loss - reference loss, 0), and the mixture it finds is
    alpha averaged over all steps. It asks no dev set: prefer `InfDDS` when there is one like the test set, and `TDRO`
    when the datasets' losses differ in scale. A reference that knows a tiny dataset by heart makes it look hard
    for ever, so train it no longer than the proxy.

    Cost of a proxy step: 4/3 training steps; with a reference and a final run of equal length, 3.33 training
    steps per step of the final run. Memory: 1 parameter size.

    Args:
        rate: How far log alpha moves in a step per nat of excess. The published 1 is for language models. With
            InfoNCE, excesses of datasets are 0.1 to 1 nat apart, and a visited dataset moves by the number of datasets
            times as much: 0.02 gives moves of about 0.1, and a lead of 0.3 nats an e-fold in 170 steps.
        smoothing: Share of the uniform distribution in alpha.
    """

    def __init__(self, rate: float = 0.02, smoothing: float = 1e-3) -> None:
        super().__init__(rate, smoothing)

    def score(self, losses: Vector, reference: Vector) -> float:
        """Return the mean excess, clipped at zero for each query."""
        return float(np.maximum(losses - reference, 0.0).mean())

    def outcome(self) -> Vector:
        """Return the average of alpha over all steps."""
        return self.average
