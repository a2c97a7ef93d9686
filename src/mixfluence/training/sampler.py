"""Draws one dataset per batch and rows of it, in a way that a resumed run can repeat.

No random state is stored: the choice at draw t is a function of (seed, t) and of the current weights, and the rows
are a function of how far each dataset has been read. A loader may run ahead of training, so a checkpoint holds the
state as of the last batch trained on; datasets drawn since then are stored too, and drawn again whatever the weights.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sentence_transformers import SentenceTransformerTrainingArguments
from torch.utils.data import Sampler

from mixfluence.data.tokens import TokenisedRows
from mixfluence.display import counted
from mixfluence.errors import RecipeError
from mixfluence.policy import Vector, cap
from mixfluence.schema import short
from mixfluence.strategies import Strategy
from mixfluence.training.streams import PartStream, RowStream, StreamState, mix, restore, shard, uniform

logger = logging.getLogger(__name__)


class Draw(NamedTuple):
    """One batch: its dataset, its rows over all processes, and the state of its stream before the draw."""

    dataset: int
    rows: int
    before: StreamState


class MixtureBatchSampler(Sampler[list[int]]):
    """Yields row numbers of one dataset at a time, numbered through all datasets in order.

    `weights` is called before every draw with the fraction of the run's batches already drawn. Batch sizes are over
    all processes: all draw the same dataset, and each keeps its shard of the rows.
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
        if self._row_limits is not None:
            possible = int((self._row_limits // self._batch_sizes * (weights(0.0) > 0)).sum())
            if possible < self._total_draws:
                raise RecipeError(
                    f"max_epochs allows {possible} batches but the run needs {self._total_draws}: "
                    "raise max_epochs or train for fewer steps"
                )

    def __len__(self) -> int:
        return self._draws_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self._skip = self._skip, 0
        # The Trainer draws and discards the batches of a resumed epoch that were trained on: let them be empty.
        yield from ([] for _ in range(skipped))
        for _ in range(self._draws_per_epoch - skipped):
            yield self._draw()

    @property
    def drawn_ahead(self) -> list[int]:
        """Datasets of the batches that were drawn but not trained on yet."""
        return [draw.dataset for draw in self._pending]

    def pop_trained(self) -> Draw:
        """Remove and return the oldest pending draw, whose batch has just been trained on."""
        self._trained += 1
        return self._pending.popleft()

    def probabilities(self) -> Vector:
        """Return the probability of each dataset for the next draw, with the epoch limit applied."""
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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; the Trainer will discard the batches of this epoch that were trained on."""
        restore(self._streams, state["streams"])
        self.rows_drawn[:] = state["rows_drawn"]
        self._trained = state["trained"]
        self._pending.clear()
        self._replay = deque(state["drawn_ahead"])
        self._skip = self._trained % self._draws_per_epoch

    def _draw(self) -> list[int]:
        dataset = self._replay.popleft() if self._replay else self._choose()
        stream = self._streams[dataset]
        before = stream.state
        rows = stream.take(int(self._batch_sizes[dataset]), self._world)
        self._pending.append(Draw(dataset, len(rows), before))
        self.rows_drawn[dataset] += len(rows)
        mine: list[int] = (self._offsets[dataset] + shard(rows, self._rank, self._world)).tolist()
        return mine

    def _choose(self) -> int:
        edges = np.cumsum(self.probabilities())
        number = uniform(self._seed, self._trained + len(self._pending))
        return int(np.searchsorted(edges, number * edges[-1], side="right"))


def build_sampler(
    args: SentenceTransformerTrainingArguments,
    strategy: Strategy,
    tokenised: Mapping[str, TokenisedRows],
    wanted: Mapping[str, int],
    negatives: Mapping[str, int],
    parts: Mapping[str, Mapping[str, int]],
) -> MixtureBatchSampler:
    """Return the sampler of a run, given the rows per batch and process, and the hard negatives of each dataset.

    Without `max_steps`, an epoch has as many batches as all rows would fill.
    """
    seed = data_seed(args)
    sizes = batch_sizes(wanted, args.world_size, tokenised)
    streams: list[RowStream] = []
    for number, (name, rows) in enumerate(tokenised.items(), 1):
        order = len(rows), partial(rows.text_keys, negatives=negatives[name]), mix(seed, number)
        own = list(parts[name].values())
        streams.append(PartStream(*order, own, least=sizes[name]) if own else RowStream(*order))
        if sizes[name] < wanted[name] * args.world_size and args.process_index == 0:
            most = counted(sizes[name], "row")
            logger.warning("%s: its batches have %s, because no two may share a query or a positive", name, most)
        if sizes[name] == 1 and not negatives[name]:
            logger.warning("%s: batches of one row without hard negatives leave nothing to compare with", name)
    per_epoch, epochs = args.max_steps * args.gradient_accumulation_steps, 1
    if args.max_steps <= 0:
        filled = sum(len(rows) / (wanted[name] * args.world_size) for name, rows in tokenised.items())
        per_epoch = math.ceil(round(filled, 6))
        epochs = math.ceil(args.num_train_epochs)
    return MixtureBatchSampler(
        streams,
        partial(probabilities, strategy, len(tokenised)),
        batch_sizes=list(sizes.values()),
        draws_per_epoch=per_epoch,
        epochs=epochs,
        seed=mix(seed),
        max_epochs=strategy.max_epochs,
        rank=args.process_index,
        world=args.world_size,
    )


def probabilities(strategy: Strategy, datasets: int, progress: float = 0.0) -> Vector:
    """Return the probability of each dataset after a part of the run; refuse weights that are none."""
    given = strategy.weights(progress)
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        weights = np.array(np.nan)
    total = weights.sum()
    if weights.shape != (datasets,) or not np.isfinite(total) or (weights < 0).any() or not total:
        expected = f"expected {datasets} numbers, one per dataset, finite, not negative and not all zero"
        raise RecipeError(f"{strategy.label}.weights: {expected}, found {short(given)}")
    # Weights that are probabilities already keep their last bits.
    return weights if math.isclose(total, 1.0, rel_tol=1e-6) else weights / total


def batch_sizes(wanted: Mapping[str, int], world: int, tokenised: Mapping[str, TokenisedRows]) -> dict[str, int]:
    """Return rows per draw over all processes, given rows per process: no more than can be in one batch."""
    return {name: max(1, min(wanted[name], rows.largest_batch // world)) * world for name, rows in tokenised.items()}


def data_seed(args: SentenceTransformerTrainingArguments) -> int:
    """Return the seed of everything that is drawn."""
    return int(args.seed if args.data_seed is None else args.data_seed)
