"""DoReMi: more weight where the loss exceeds that of a reference model."""

from __future__ import annotations

from typing import Literal

import numpy as np

from mixfluence.policy import Vector
from mixfluence.schema import Fraction
from mixfluence.strategies.group_dro import GroupDRO


class DoReMi(GroupDRO):
    """Group-DRO on the excess loss of a proxy over a reference (Xie et al. 2023); see `GroupDRO` for the step.

    The score of a batch is the mean over its queries of max(loss - reference loss, 0), and the mixture is alpha
    averaged over all steps. It needs no dev set: prefer `InfDDS` when there is one like the test set, and `TDRO` when
    the losses of the datasets differ in scale. A reference that has memorised a tiny dataset makes it look hard
    forever, so train it no longer than the proxy.

    Cost with a reference and a proxy as long as the final run: 3 2/3 training steps per step of the final run.
    Memory: 1 parameter size.

    Attributes:
        rate: How far log alpha moves in a step per nat of excess. The published 1 is for language models; with
            InfoNCE, a lead of 0.3 nats at 0.02 makes alpha grow e-fold in 170 steps.
        smoothing: Share of the uniform distribution in alpha.
    """

    title = "DoReMi"
    name: Literal["doremi"] = "doremi"
    smoothing: Fraction = 1e-3

    def score(self, losses: Vector, reference: Vector) -> float:
        """Return the mean excess, clipped at zero for each query."""
        return float(np.maximum(losses - reference, 0.0).mean())

    def outcome(self) -> Vector:
        return self._sum / self._steps if self._steps else self.alpha

    def _uniform_share(self) -> float:
        return self.smoothing
