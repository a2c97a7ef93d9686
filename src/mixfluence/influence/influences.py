"""Measured influences: the gain of every dev query from training on every dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Influences:
    """Influences of one round. Positive means that training on the dataset helped.

    Attributes:
        probed: Positions in the mixture of the measured datasets, without those that failed.
        failed: Positions of the datasets whose measurement was not finite.
        targets: Names of the dev sets.
        base: Mean metric on each dev set before any probe.
        gains: For each dev set an array of probed datasets x queries: the improvement of each query's metric.
        sign: 1 if a larger metric is better, -1 if a smaller one is.
    """

    probed: NDArray[np.int64]
    failed: NDArray[np.int64]
    targets: list[str]
    base: Array
    gains: list[Array]
    sign: int = -1

    def of(self, targets: Iterable[str]) -> Influences:
        """Return the influences on some of the dev sets, in the given order."""
        places = [self.targets.index(target) for target in targets]
        names, gains = [self.targets[place] for place in places], [self.gains[place] for place in places]
        return replace(self, targets=names, base=self.base[places], gains=gains)

    def on_targets(self) -> Array:
        """Return the influence of every probed dataset on every target."""
        return np.stack([gain.mean(axis=1) for gain in self.gains], axis=1)

    def errors(self) -> Array:
        """Return the standard error of each influence on each target, as a distance from the mean over datasets."""
        return np.stack([_contrast_errors(gain) for gain in self.gains], axis=1)

    def spread(self) -> float:
        """Return the standard deviation of the combined influences; 0 for fewer than two datasets."""
        return float(self.combine()[0].std()) if len(self.probed) > 1 else 0.0

    def combine(self) -> tuple[Array, Array]:
        """Return the mean over targets of each probed dataset's influence, and its standard error.

        As in the paper, targets with a large loss dominate. The error is that of the distance from the mean over
        datasets, from paired differences, so that the variance between queries that all datasets share cancels out.
        """
        errors = np.sqrt((self.errors() ** 2).sum(axis=1)) / len(self.targets)
        return self.on_targets().mean(axis=1), errors


def gather(
    probed: Sequence[int], targets: list[str], before: list[Tensor], after: list[list[Tensor]], sign: int
) -> Influences:
    """Return the influences of a round, given values per query on each dev set.

    `before` are the values before any probe, `after` those after the probe of each dataset.
    """
    # One copy to the CPU, because every copy waits for the device.
    values = torch.stack([torch.cat(evals).double() for evals in (before, *after)]).cpu().numpy()
    finite = np.isfinite(values).all(axis=1)
    kept = finite[1:] & finite[0]
    positions = np.array(probed, np.int64)
    bounds = np.cumsum([len(target) for target in before])[:-1]
    base = np.array([target.mean() for target in np.split(values[0], bounds)])
    gains = np.split(sign * (values[1:][kept] - values[0]), bounds, axis=1)
    return Influences(positions[kept], positions[~kept], targets, base, gains, sign)


def combined_gain(before: Sequence[Tensor], after: Sequence[Tensor], sign: int) -> Tensor:
    """Return the influence of one dataset as `Influences.combine` does, without synchronising with the device."""
    base, now = (torch.stack([values.double().mean() for values in evals]) for evals in (before, after))
    return sign * (now - base).mean()


def _contrast_errors(gains: Array) -> Array:
    """Return the standard error of each row's distance from the mean row; 0 for a single query."""
    rows, queries = gains.shape
    if rows == 0 or queries < 2:
        return np.zeros(rows)
    contrasts = gains - gains.mean(axis=0)
    return np.asarray(contrasts.std(axis=1, ddof=1) / np.sqrt(queries))
