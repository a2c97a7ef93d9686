"""tDRO: more weight where the loss is large in proportion to that of a reference model."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from mixfluence.policy import Vector
from mixfluence.schema import PositiveShare
from mixfluence.strategies.group_dro import GroupDRO

# Below this many nats the reference has solved a query, and a ratio to its loss says nothing. The published bound is
# 1e-4 of the sum over a batch of 512, which is 5 % of the mean.
LEAST_REFERENCE = 0.05


class TDRO(GroupDRO):
    """Group-DRO on the loss of a proxy in proportion to a reference's (Ma et al. 2025); see `GroupDRO` for the step.

    The score of a batch is the mean over its queries of loss / reference loss, by the row's own passages where rows
    have hard negatives. Scores of all datasets are divided by their norm, and the mixture is the last alpha.
    Prefer `DoReMi` when the reference solves most queries: ratios to small losses are noisy.

    Cost with a reference and a proxy as long as the final run: 3 2/3 training steps per step of the final run.
    Memory: 1 parameter size.

    Attributes:
        rate: Length of the step of log alpha.
        keep: Share of the datasets that the final run draws from, uniformly: those with the largest alpha (the
            published choice is 0.7). None draws from all of them by alpha.
    """

    title = "tDRO"
    own_negatives_only = True
    name: Literal["tdro"] = "tdro"
    keep: PositiveShare | None = None

    def score(self, losses: Vector, reference: Vector) -> float:
        """Return the mean ratio; a query that the reference has solved counts with its plain loss."""
        known = np.where(reference < LEAST_REFERENCE, 1.0, reference)
        return float(np.maximum(losses / known, 0.0).mean())

    def scale(self, scores: Vector) -> float:
        return float(np.linalg.norm(scores)) or 1.0

    def outcome(self) -> Vector:
        """Return the last alpha, or the uniform distribution over the best datasets."""
        if self.keep is None:
            return self.alpha
        # Rounded first: 0.29 x 100 is slightly below 29.
        kept = max(1, math.floor(round(self.keep * len(self.alpha), 9)))
        best = np.argsort(-self._log_alpha, kind="stable")[:kept]
        mixture = np.zeros(len(self.alpha))
        mixture[best] = 1 / kept
        return mixture
