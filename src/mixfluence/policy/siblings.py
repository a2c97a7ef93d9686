"""Evidence that the clusters of a dataset share: a two-level estimate of their influences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mixfluence.policy.bounds import Vector

# Variances are at least this part of the largest one, so that their inverses are finite.
LEAST_VARIANCE = 1e-12


def share_evidence(
    probed: NDArray[np.int64], values: Vector, errors: Vector, groups: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Vector, Vector]:
    """Return the arms about which a round says something, with estimates of their values and standard errors.

    The values of a dataset's arms vary around its mean with a variance that is the same for all datasets, estimated by
    what errors do not explain of the observed one (empirical Bayes). A measured value is shrunk towards the mean of
    its dataset by the share of its variance that is error. An arm that was not measured has this mean, with an error
    that counts how much arms differ.

    Args:
        probed: Positions of the measured arms.
        values: Their values, or a row of values per arm, one for each target.
        errors: Standard errors of the values.
        groups: A number per arm, the same for arms of one dataset.
    """
    shape = (len(probed), -1)
    found, noise = values.reshape(shape), errors.reshape(shape) ** 2
    known, own = np.unique(groups[probed], return_inverse=True)
    members = (own == np.arange(len(known))[:, None]).astype(np.float64)
    between = _between(found, noise, members, own)
    variance = between + noise
    largest = variance.max(axis=0)
    precision = 1 / np.maximum(variance, np.where(largest > 0, LEAST_VARIANCE * largest, 1.0))
    precisions = members @ precision
    means = members @ (precision * found) / precisions
    mean_variance = np.where(largest > 0, 1 / precisions, 0.0)
    kept = between * precision

    arms = np.flatnonzero(np.isin(groups, known))
    places = np.searchsorted(known, groups[arms])
    estimates, uncertainty = means[places], between + mean_variance[places]
    measured = np.searchsorted(arms, probed)
    estimates[measured] += kept * (found - means[own])
    uncertainty[measured] = kept * noise + (1 - kept) ** 2 * mean_variance[own]
    result_shape = (len(arms), *values.shape[1:])
    return arms, estimates.reshape(result_shape), np.sqrt(uncertainty).reshape(result_shape)


def _between(values: Vector, noise: Vector, members: Vector, own: NDArray[np.int64]) -> Vector:
    """Return the variance of arms around the mean of their dataset, in each column."""
    counts = members.sum(axis=1)
    freedom = len(values) - len(counts)
    if not freedom:
        # No two arms of a dataset: they may differ as much as any two do.
        return np.asarray(np.maximum(0.0, values.var(axis=0) - noise.mean(axis=0)))
    residuals = values - (members @ values / counts[:, None])[own]
    explained = ((1 - 1 / counts[own])[:, None] * noise).sum(axis=0)
    return np.asarray(np.maximum(0.0, (residuals**2).sum(axis=0) - explained) / freedom)
