"""Turn logits into probabilities above a floor and below limits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError

Vector = NDArray[np.float64]


def softmax(logits: Vector) -> Vector:
    """Turn logits into probabilities."""
    scaled = np.exp(logits - logits.max())
    return np.asarray(scaled / scaled.sum())


def lift(probabilities: Vector, floor: float) -> Vector:
    """Mix in the uniform distribution just enough that no probability is below `floor`."""
    share = floor * len(probabilities)
    if not 0 <= share <= 1:
        limit = 1 / len(probabilities)
        raise RecipeError(f"a floor of {floor} for {len(probabilities)} datasets must lie between 0 and {limit:.3g}")
    return (1 - share) * probabilities + floor


def cap(probabilities: Vector, limits: Vector) -> Vector:
    """Cut every probability to its limit and give the excess to the others (water-filling).

    The excess goes to the datasets below their limit in proportion to their probability, so their ratios do not
    change. Limits that sum to less than one are returned rescaled; if all limits are zero, the probabilities are
    returned unchanged.
    """
    capped = np.zeros(len(probabilities), dtype=bool)
    shares = probabilities
    while (over := ~capped & (shares > limits)).any():
        capped |= over
        free = np.where(capped, 0.0, probabilities)
        rest = max(0.0, 1.0 - limits[capped].sum())
        scale = rest / free.sum() if free.any() else 0.0
        shares = np.where(capped, limits, free * scale)
    return np.asarray(shares / shares.sum() if shares.any() else probabilities)
