"""Going on after 100,000 steps takes no longer than after ten.

- A sampler that loads the state of 100,000 draws reads no row of them, and draws next what the one that
  drew them draws.
- The Trainer's skipping of what was trained on costs no row either.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from mixfluence.policy import Vector
from mixfluence.training.sampler import MixtureBatchSampler
from mixfluence.training.streams import Rows, RowStream

pytestmark = pytest.mark.soak

DRAWS, MORE = 100_000, 50
SIZES = (1_000, 50_000)


class Reads:
    """Counts the rows whose texts were looked at."""

    def __init__(self) -> None:
        self.rows = 0

    def keys(self, rows: Rows) -> NDArray[np.uint64]:
        self.rows += len(rows)
        # A quarter of the rows share their positive with others, so that some have to wait.
        return np.stack([rows * 2, (rows - rows % 4) * 2 + 1], axis=1).astype(np.uint64)


def weights(progress: float) -> Vector:
    return np.array([0.3, 0.7]) if progress < 0.4 else np.array([0.6, 0.4])


def sampler() -> tuple[MixtureBatchSampler, Reads]:
    reads = Reads()
    streams = [RowStream(size, reads.keys, key) for key, size in enumerate(SIZES)]
    return MixtureBatchSampler(streams, weights, batch_sizes=[2, 2], draws_per_epoch=2 * DRAWS, seed=5), reads


def test_a_sampler_goes_on_after_100_000_draws_without_replaying_them() -> None:
    walked, _ = sampler()
    draws = iter(walked)
    for _ in range(DRAWS):
        next(draws)
        walked.pop_trained()
    saved = json.dumps(walked.state_dict())
    assert len(saved) < 100_000
    expected = [next(draws) for _ in range(MORE)]

    resumed, reads = sampler()
    started = time.perf_counter()
    resumed.load_state_dict(json.loads(saved))
    rest = iter(resumed)
    assert all(next(rest) == [] for _ in range(DRAWS))
    assert reads.rows == 0
    assert [next(rest) for _ in range(MORE)] == expected
    assert time.perf_counter() - started < 2.0
    assert (resumed.rows_drawn == walked.rows_drawn).all()
