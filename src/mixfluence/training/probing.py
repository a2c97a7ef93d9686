"""Rounds of probes between two training steps: what they draw, how they run and what they report.

Rows, dev rows, subsets and dropout of probes have random streams of their own: probing changes no training draw.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from accelerate.utils import broadcast, reduce
from torch import Tensor, nn

from mixfluence.data.tokens import TokenisedRows
from mixfluence.embedding import place
from mixfluence.errors import DataError
from mixfluence.influence import (
    DevBatch,
    Influences,
    Meter,
    Piece,
    relative_rate,
    resolve_metric,
)
from mixfluence.influence.settings import Batches
from mixfluence.influence.snapshot import preserve
from mixfluence.training.batches import Collate, MixtureRows, dev_negatives_per_row
from mixfluence.training.sampler import batch_sizes, data_seed
from mixfluence.training.streams import Rows, RowStream, mix, permuted, restore, shard

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureMixin

# Ids of the random streams.
PROBE_ROWS, DEV_ROWS, SUBSET, DROPOUT = range(1, 5)


class ProbeRunner:
    """Runs rounds of probes for a trainer whose strategy asks for them, and updates the strategy.

    `influence` is the last one of each dataset that was measured, `seconds` the time spent on probes by this trainer.
    """

    def __init__(
        self,
        trainer: MixtureMixin,
        dev: Mapping[str, TokenisedRows],
        negatives: Mapping[str, int],
        collate: Collate,
    ) -> None:
        assert trainer.strategy.probing is not None
        self.influence: dict[str, float] = {}
        self.seconds = 0.0
        self._trainer = trainer
        self._strategy = trainer.strategy
        self._probing = trainer.strategy.probing
        self._probe = probe = self._probing.method
        self._metric = resolve_metric(probe.metric, trainer.loss)
        self._collate = collate
        self._seed = data_seed(trainer.args)
        self._rank: int = 0 if probe.alone else trainer.args.process_index
        self._world: int = 1 if probe.alone else trainer.args.world_size
        wanted = dict.fromkeys(trainer.mixture, probe.batch_size) if probe.batch_size else trainer.batch_sizes
        sizes = batch_sizes(wanted, self._world, trainer.tokenised)
        self._batch_sizes = list(sizes.values())
        self._rows = MixtureRows(trainer.tokenised, negatives)
        self._streams = self._open(trainer.tokenised, negatives, PROBE_ROWS)
        dev_negatives = dict.fromkeys(dev, 0)
        if self._metric.hard_negatives:
            dev_negatives = dev_negatives_per_row(dev, trainer.num_negatives)
        self._largest = {name: rows.largest_batch for name, rows in dev.items()}
        wanted_rows = {name: min(probe.dev_batch_size, len(rows)) for name, rows in dev.items()}
        self._dev_sizes = {name: sum(_parts(rows, self._largest[name])) for name, rows in wanted_rows.items()}
        self._dev_rows = MixtureRows(dev, dev_negatives)
        # Opened again for rounds without probes, which are compared with each other and so need the same rows.
        self._open_dev = partial(self._open, dev, dev_negatives, DEV_ROWS)
        self._dev_streams = self._open_dev()
        for number, (name, stream) in enumerate(zip(dev, self._open_dev(), strict=True)):
            self._refuse_unfit(name, number, stream.take(2))
        self._spread = math.inf
        self._rounds = 0
        self._learner: TrainerLearner
        self._meter: Meter

    @property
    def due(self) -> bool:
        """Whether the strategy wants a round now, at the end of a step that is not the last."""
        state = self._trainer.state
        if state.global_step >= state.max_steps:
            return False
        return self._strategy.due(state.global_step, relative_rate(self._trainer.optimizer))

    def start(self) -> None:
        """Prepare for the first round, once the trainer has its optimizer; refuse one that probes cannot work with."""
        self._learner = TrainerLearner(self._trainer, alone=self._probe.alone)
        most = self._strategy.space_rounds(self._round_cost, self._trainer.state.max_steps)
        self._dev_sizes = {name: min(most, rows) for name, rows in self._dev_sizes.items()}
        self._meter = self._probe.meter(self._learner, self._metric, self._probing.reptile)
        if self._strategy.guards and not self._trainer.resumed:
            self._strategy.update(self._measure([], lambda _: (), self._open_dev()))

    def update(self) -> dict[str, Any]:
        """Run a round, update the strategy with it, and return what the trace says about it."""
        started = self._now()
        influences = self._run()
        cost = {"seconds": round(self._now() - started, 4), "memory": round(self._meter.memory, 3)}
        self.seconds += cost["seconds"]
        update = cost | describe(influences, self._strategy.update(influences), list(self._trainer.mixture))
        self.influence = update.get("influence", {})
        return update

    def state_dict(self) -> dict[str, Any]:
        """Return how far each stream has been read, as JSON values."""
        return {
            "rounds": self._rounds,
            "spread": None if math.isinf(self._spread) else self._spread,
            "streams": [stream.state for stream in self._streams],
            "dev_streams": [stream.state for stream in self._dev_streams],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rounds = state["rounds"]
        self._spread = math.inf if state["spread"] is None else state["spread"]
        restore(self._streams, state["streams"])
        restore(self._dev_streams, state["dev_streams"])

    def _run(self) -> Influences:
        chosen = self._choose()
        drawn: dict[int, list[Rows]] = {}
        # Every process draws for all datasets, whichever it probes, so that the streams stay alike.
        for dataset in chosen:
            stream, size = self._streams[dataset], self._batch_sizes[dataset]
            drawn[dataset] = [stream.take(size, self._world) for _ in range(self._probing.steps)]

        def batches(dataset: int) -> Iterator[dict[str, Any]]:
            for rows in drawn[dataset]:
                yield self._collate(self._rows.batch(dataset, shard(rows, self._rank, self._world)))

        influences = self._measure(chosen, batches, self._dev_streams if chosen else self._open_dev())
        self._spread = influences.spread() or self._spread
        self._rounds += 1
        return influences

    def _measure(self, chosen: Sequence[int], batches: Batches, dev: Sequence[RowStream]) -> Influences:
        # The Trainer sums up the components of a loss whenever it is computed.
        components = copy.deepcopy(self._trainer.accum_loss_components)
        seed = mix(self._seed, DROPOUT, self._rounds) >> 1
        with self._learner.detached():
            found = self._meter.measure(chosen, batches, self._dev_batches(dev), seed=seed, spread=self._spread)
        self._trainer.accum_loss_components = components
        return found

    def _open(self, datasets: Mapping[str, TokenisedRows], negatives: Mapping[str, int], use: int) -> list[RowStream]:
        return [
            RowStream(len(rows), partial(rows.text_keys, negatives=negatives[name]), mix(self._seed, use, number))
            for number, (name, rows) in enumerate(datasets.items())
        ]

    def _round_cost(self, most: int) -> float:
        """Return the cost of a round in training steps, with at most so many rows of each target."""
        args, probing, possible = self._trainer.args, self._probing, self._strategy.candidates()
        rows_per_step = args.train_batch_size * args.gradient_accumulation_steps
        batch = float(np.array(self._batch_sizes)[possible].mean()) / self._world if len(possible) else 0.0
        dev = sum(min(most, rows) for rows in self._dev_sizes.values()) / rows_per_step
        measured = probing.measured(len(possible))
        return self._probe.round_cost(measured, batch / rows_per_step, probing.steps, dev, args.world_size)

    def _choose(self) -> list[int]:
        """Return the datasets to probe: all candidates, or some at random if the strategy wants fewer."""
        possible = self._strategy.candidates()
        shuffled = possible[permuted(np.arange(len(possible)), len(possible), mix(self._seed, SUBSET, self._rounds))]
        return sorted(shuffled[: self._probing.measured(len(possible))].tolist())

    def _dev_batches(self, streams: Sequence[RowStream]) -> list[DevBatch]:
        """Draw rows of every dev set."""
        batches = []
        # Guards are compared with the start, and so need the same rows in every round.
        same = self._open_dev() if self._strategy.guards else streams
        for number, (name, rows) in enumerate(self._dev_sizes.items()):
            stream = (same if name in self._strategy.guards else streams)[number]
            parts = _parts(rows, self._largest[name])
            batches += [DevBatch(name, self._pieces(number, stream.take(size))) for size in parts]
        return batches

    def _pieces(self, number: int, rows: Rows) -> list[Piece]:
        """Return rows of a dev set in pieces of at most a training batch, which is known to fit in memory."""
        pieces = np.array_split(rows, math.ceil(len(rows) / self._trainer.args.train_batch_size))
        inputs = [self._learner.place(self._collate(self._dev_rows.batch(number, piece))) for piece in pieces]
        return [Piece(*self._trainer.collect_features(piece)) for piece in inputs]

    def _refuse_unfit(self, name: str, number: int, rows: Rows) -> None:
        """Refuse a dev set that the metric cannot be computed on."""
        if len(rows) < 2:
            raise DataError(f"dev set {name}: needs at least two rows that share neither query nor positive")
        batch = self._dev_rows.batch(number, rows)
        if self._metric.score is not None:
            # Called for its error only: some metrics need a teacher's scores or hard negatives.
            scores = torch.zeros(2, 2 * (len(batch.columns) - 1))
            labels = None if batch.scores is None else torch.from_numpy(batch.scores)
            self._metric.score(scores, DevBatch(name, [Piece([], labels)]))

    def _now(self) -> float:
        if self._trainer.args.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.args.device)
        return time.monotonic()


class TrainerLearner:
    """The `Learner` of probes: a trainer between two steps; `alone` if each process probes datasets of its own."""

    def __init__(self, trainer: MixtureMixin, *, alone: bool) -> None:
        self._trainer = trainer
        self._losses = list(trainer.loss.values()) if isinstance(trainer.loss, dict) else [trainer.loss]
        self.model: nn.Module = trainer.model
        self.modules: nn.Module = nn.ModuleList([trainer.model, *self._losses])
        self.rank: int = trainer.args.process_index if alone else 0
        self.world: int = trainer.args.world_size if alone else 1
        # Without accelerate's wrapper, whose `step` does nothing while gradients are accumulated.
        self.optimizer: torch.optim.Optimizer = trainer.optimizer.optimizer

    def backward(self, batch: dict[str, Any]) -> None:
        trainer = self._trainer
        wrapped = trainer.model_wrapped if self.world == 1 else trainer.model
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(wrapped, self.place(batch))
        trainer.accelerator.backward(loss)
        if trainer.args.max_grad_norm > 0:
            trainer.accelerator.clip_grad_norm_(self.model.parameters(), trainer.args.max_grad_norm)

    def agree(self, values: Tensor) -> Tensor:
        return cast(Tensor, broadcast(values)) if self._trainer.args.world_size > 1 else values

    def total(self, values: Tensor) -> Tensor:
        return cast(Tensor, reduce(values.contiguous(), "sum"))

    def place(self, batch: dict[str, Any]) -> dict[str, Any]:
        return cast(dict[str, Any], place(batch, self._trainer.args.device))

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Make losses local for a while if each process probes datasets of its own."""
        if self.world == 1:
            yield
            return
        parts = [part for loss in self._losses for part in loss.modules()]
        calling = [part for part in parts if getattr(part, "model", None) is self._trainer.model_wrapped]
        gathering = [part for part in parts if getattr(part, "gather_across_devices", False)]
        with preserve("model", calling), preserve("gather_across_devices", gathering):
            for part in calling:
                part.model = self.model
            for part in gathering:
                part.gather_across_devices = False
            yield


def _parts(rows: int, largest: int) -> list[int]:
    """Return the sizes of the batches of a dev set: several if few of its rows can be in one, as with few answers."""
    size = min(rows, largest)
    return [size] * (rows // size)


def describe(influences: Influences, facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return what the trace says about a round, besides its cost in `seconds` and `memory` (in parameter sizes).

    `on_targets` is the influence of each dataset on each dev set, `dev` the metric on each dev set before the round,
    `failed` the datasets whose probe was not finite. A list in `facts` has one value per measured dataset.
    """
    probed, targets = [names[dataset] for dataset in influences.probed], influences.targets

    def by_name(values: list[Any]) -> dict[str, Any]:
        return dict(zip(probed, values, strict=True))

    on_targets, errors = influences.on_targets().T.tolist(), influences.errors().T.tolist()
    # JSON has no NaN.
    dev = [value if math.isfinite(value) else None for value in influences.base.tolist()]
    return {
        **{name: by_name(value) if isinstance(value, list) else value for name, value in facts.items()},
        "on_targets": {target: by_name(values) for target, values in zip(targets, on_targets, strict=True)},
        "target_errors": {target: by_name(values) for target, values in zip(targets, errors, strict=True)},
        "dev": dict(zip(targets, dev, strict=True)),
        "rows": {target: gains.shape[1] for target, gains in zip(targets, influences.gains, strict=True)},
        "failed": [names[dataset] for dataset in influences.failed],
    }
