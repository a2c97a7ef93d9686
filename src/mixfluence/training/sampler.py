"""Draws one dataset per batch and rows of it, so that a resumed run draws what it would have drawn.

Nothing random is stored: the choice at draw t is a function of (seed, t) and of the weights in force, and
the rows are a function of how far each dataset has been read. A loader may run ahead of training, so the
state of a checkpoint is that of the last batch trained on; the datasets drawn since then are remembered
and drawn again, under whatever weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from mixfluence.errors import RecipeError
from mixfluence.policy import Vector, cap
from mixfluence.training.permutation import uniform
from mixfluence.training.streams import RowStream, StreamState, share


class Draw(NamedTuple):
    """One batch: which dataset, how many rows over all processes, and its stream before the draw."""

    dataset: int
    rows: int
    before: StreamState


class MixtureBatchSampler(Sampler[list[int]]):
    """Yields row numbers of one dataset at a time, numbered through all datasets in order.

    Args:
        streams: One per dataset.
        weights: Returns the probability of each dataset, given the part of the run's batches that have been drawn;
            asked before every draw.
        batch_sizes: Rows per draw of each dataset, over all processes.
        draws_per_epoch: Batches in one pass of the loader.
        epochs: Passes the run will make.
        seed: Decides the choice of datasets.
        max_epochs: Most passes over any dataset's rows, None for no limit.
        rank: This process.
        world: Number of processes. All draw the same dataset and each keeps its share of the rows.
    """

    def __init__(
        self,
        streams: Sequence[RowStream],
        weights: Callable[[float], Vector],
        *,
        batch_sizes: Sequence[int],
        draws_per_epoch: int,
        epochs: int = 1,
        seed: int = 0,
        max_epochs: float | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._streams = streams
        self._weights = weights
        self._batch_sizes = np.array(batch_sizes, np.int64)
        self._draws_per_epoch = draws_per_epoch
        self._total_draws = draws_per_epoch * epochs
        self._seed = seed
        self._rank, self._world = rank, world
        sizes = np.array([stream.size for stream in streams], np.int64)
        self._offsets = np.cumsum(sizes) - sizes
        self._row_limits = None if max_epochs is None else np.floor(max_epochs * sizes)
        self.rows_drawn = np.zeros(len(streams), np.int64)
        self._pending: deque[Draw] = deque()
        self._replay: deque[int] = deque()
        self._trained = 0
        self._skip = 0
        self._check_limits()

    def __len__(self) -> int:
        return self._draws_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self._skip = self._skip, 0
        # The host skips what a resumed epoch has trained on by drawing it and throwing it away.
        yield from ([] for _ in range(skipped))
        for _ in range(self._draws_per_epoch - skipped):
            yield self._draw()

    @property
    def drawn_ahead(self) -> list[int]:
        """Datasets of the batches that were drawn but not trained on yet."""
        return [draw.dataset for draw in self._pending]

    def forget_trained(self) -> Draw:
        """Return the oldest draw, the batch that training has just finished with."""
        self._trained += 1
        return self._pending.popleft()

    def probabilities(self) -> Vector:
        """Return the probability of each dataset for the next draw, with the epoch cap applied."""
        drawn = self._trained + len(self._pending)
        weights = self._weights(drawn / self._total_draws)
        if self._row_limits is None:
            return weights
        left = (self._row_limits - self.rows_drawn) // self._batch_sizes
        return cap(weights, left / max(1, self._total_draws - drawn))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as of the last batch trained on, as JSON values."""
        states = {dataset: stream.state for dataset, stream in enumerate(self._streams)}
        rows_drawn = self.rows_drawn.copy()
        for draw in reversed(self._pending):
            states[draw.dataset] = draw.before
            rows_drawn[draw.dataset] -= draw.rows
        return {
            "trained": self._trained,
            "streams": list(states.values()),
            "rows_drawn": rows_drawn.tolist(),
            "drawn_ahead": self.drawn_ahead,
        }

    def load_state_dict(self, state: Mapping[str, Any], skip: bool = True) -> None:
        """Continue from a checkpoint.

        Args:
            state: What `state_dict` returned.
            skip: Whether the host will discard the batches of this epoch that were trained on.
        """
        for stream, (position, waiting) in zip(self._streams, state["streams"], strict=True):
            stream.state = StreamState(position, tuple(waiting))
        self.rows_drawn[:] = state["rows_drawn"]
        self._trained = state["trained"]
        self._pending.clear()
        self._replay = deque(state["drawn_ahead"])
        self._skip = self._trained % self._draws_per_epoch if skip else 0

    def _draw(self) -> list[int]:
        dataset = self._replay.popleft() if self._replay else self._choose()
        stream = self._streams[dataset]
        before = stream.state
        rows = stream.take(int(self._batch_sizes[dataset]), self._world)
        self._pending.append(Draw(dataset, len(rows), before))
        self.rows_drawn[dataset] += len(rows)
        mine: list[int] = (self._offsets[dataset] + share(rows, self._rank, self._world)).tolist()
        return mine

    def _choose(self) -> int:
        edges = np.cumsum(self.probabilities())
        number = uniform(self._seed, self._trained + len(self._pending))
        return int(np.searchsorted(edges, number * edges[-1], side="right"))

    def _check_limits(self) -> None:
        if self._row_limits is None:
            return
        possible = self._row_limits // self._batch_sizes * (self._weights(0.0) > 0)
        if possible.sum() < self._total_draws:
            raise RecipeError(
                f"max_epochs allows {int(possible.sum())} batches but the run needs {self._total_draws}: "
                "raise max_epochs or train for fewer steps"
            )
