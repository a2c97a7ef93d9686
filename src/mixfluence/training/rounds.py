"""Rounds of probes at the end of a step, and what they draw."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import DistributedType

from mixfluence.data.tokens import TokenisedRows
from mixfluence.errors import DataError, RecipeError
from mixfluence.influence import DevBatch, Influences, Piece, refuse_without_moments, resolve_metric
from mixfluence.strategies import Strategy
from mixfluence.training.batches import Collator, MixtureRows
from mixfluence.training.draws import batch_sizes, data_seed, dev_negatives_per_row
from mixfluence.training.permutation import mix, permuted
from mixfluence.training.streams import Rows, RowStream, StreamState, share
from mixfluence.training.trainer_learner import TrainerLearner

if TYPE_CHECKING:
    from mixfluence.training.trainer import MixtureTrainer

# Names of the random streams beside those of training, so that probing changes no training draw.
PROBE_ROWS, DEV_ROWS, SUBSET, DROPOUT = range(1, 5)


class ProbeRounds:
    """Draws what a round needs, from streams of their own, and runs it.

    Args:
        trainer: Whose model is probed.
        strategy: Says how; it must want probes.
        tokenised: The pool.
        dev: The targets.
        negatives: Hard negatives per row of each training dataset.
        collate: Makes model inputs of rows.
    """

    def __init__(
        self,
        trainer: MixtureTrainer,
        strategy: Strategy,
        tokenised: Mapping[str, TokenisedRows],
        dev: Mapping[str, TokenisedRows],
        negatives: Mapping[str, int],
        collate: Collator,
    ) -> None:
        assert strategy.probing is not None
        _refuse_unsupported(trainer)
        self._trainer = trainer
        self._strategy = strategy
        self._probing = strategy.probing
        self._probe = self._probing.method
        self._seed = data_seed(trainer.args)
        self._metric = resolve_metric(self._probe.metric, trainer.loss)
        self._collate = collate
        self._rows = MixtureRows(tokenised, negatives)
        world = 1 if self._probe.alone else trainer.args.world_size
        sizes = batch_sizes(self._probe.batch_size or trainer.args.train_batch_size, world, tokenised)
        self._batch_sizes = list(sizes.values())
        self._share = (0, 1) if self._probe.alone else (trainer.args.process_index, world)
        self._drawn: dict[int, list[Rows]] = {}
        self._streams = self._open(tokenised, negatives, PROBE_ROWS)
        dev_negatives = dict.fromkeys(dev, 0)
        if self._metric.hard_negatives:
            dev_negatives = dev_negatives_per_row(dev, trainer.num_negatives)
        self._dev_names = list(dev)
        self._dev_rows = MixtureRows(dev, dev_negatives)
        self._dev_sizes = [min(self._probe.dev_batch_size, rows.distinct_positives) for rows in dev.values()]
        # Anew for looks without probes, which are compared with each other and so need the same rows.
        self._open_dev = partial(self._open, dev, dev_negatives, DEV_ROWS)
        self._dev_streams = self._open_dev()
        for number, stream in enumerate(self._open_dev()):
            self._refuse_unfit(number, stream.take(2))
        self._spread = math.inf
        self._rounds = 0

    def check_optimizer(self) -> None:
        """Refuse at the start an optimizer with which the first round would fail."""
        if self._probe.needs_moments:
            refuse_without_moments(self._trainer.optimizer.optimizer)

    def run(self) -> tuple[Influences, dict[str, float]]:
        """Probe, and return what was measured and what it cost."""
        started = self._now()
        learner = TrainerLearner(self._trainer, alone=self._probe.alone)
        meter = self._probe.meter(learner, self._metric, self._probing.reptile)
        chosen = self._choose()
        # By every process, whichever is to probe them, so that the streams stay alike.
        self._drawn = {dataset: self._draw(dataset) for dataset in chosen}
        # A loss of several parts is counted by the host whenever it is computed.
        components = copy.deepcopy(self._trainer.accum_loss_components)
        with learner.on_its_own():
            influences = meter.measure(
                chosen,
                self._batches,
                self._dev_batches(learner, self._dev_streams if chosen else self._open_dev()),
                seed=mix(self._seed, DROPOUT, self._rounds) >> 1,
                spread=self._spread,
            )
        self._trainer.accum_loss_components = components
        self._spread = influences.spread(self._probe.aggregate) or self._spread
        self._rounds += 1
        return influences, {"seconds": round(self._now() - started, 4), "memory": round(meter.memory, 3)}

    def state_dict(self) -> dict[str, Any]:
        """Return how far each stream has been read, as JSON values."""
        return {
            "rounds": self._rounds,
            "spread": None if math.isinf(self._spread) else self._spread,
            "streams": [stream.state for stream in self._streams],
            "dev_streams": [stream.state for stream in self._dev_streams],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._rounds = state["rounds"]
        self._spread = math.inf if state["spread"] is None else state["spread"]
        for streams, states in (self._streams, state["streams"]), (self._dev_streams, state["dev_streams"]):
            for stream, (position, waiting) in zip(streams, states, strict=True):
                stream.state = StreamState(position, tuple(waiting))

    def _refuse_unfit(self, number: int, rows: Rows) -> None:
        """Refuse a dev set of which two rows cannot be judged."""
        name = self._dev_names[number]
        if len(rows) < 2:
            raise DataError(f"{name}: a dev set needs at least two rows that do not share a query or a positive")
        scores = self._dev_rows.batch(number, rows).scores
        if self._metric.score is not None:
            # What it says of texts does not matter, but whether it can do without a teacher's scores.
            passages = torch.zeros(2, 1 if scores is None else scores.shape[1], 1)
            labels = None if scores is None else torch.from_numpy(scores)
            self._metric.score(torch.zeros(2, 1), passages, DevBatch(name, [Piece([], labels)]))

    def _open(
        self, datasets: Mapping[str, TokenisedRows], negatives: Mapping[str, int], purpose: int
    ) -> list[RowStream]:
        return [
            RowStream(len(rows), partial(rows.text_keys, negatives=negatives[name]), mix(self._seed, purpose, number))
            for number, (name, rows) in enumerate(datasets.items())
        ]

    def _choose(self) -> list[int]:
        """Return the datasets to probe: all that are worth it, or as many of them as the strategy wants."""
        possible = self._strategy.candidates()
        wanted = min(self._probing.subset or len(possible), len(possible))
        places = permuted(np.arange(wanted), len(possible), mix(self._seed, SUBSET, self._rounds))
        return sorted(possible[places].tolist())

    def _draw(self, dataset: int) -> list[Rows]:
        stream, size, world = self._streams[dataset], self._batch_sizes[dataset], self._share[1]
        return [stream.take(size, world) for _ in range(self._probing.steps)]

    def _batches(self, dataset: int) -> Iterator[dict[str, Any]]:
        for rows in self._drawn[dataset]:
            yield self._collate(self._rows.batch(dataset, share(rows, *self._share)))

    def _dev_batches(self, learner: TrainerLearner, streams: Sequence[RowStream]) -> list[DevBatch]:
        """Draw the rows of every target, in pieces that are known to fit: those of a training batch."""
        batches = []
        for number, (name, stream) in enumerate(zip(self._dev_names, streams, strict=True)):
            rows = stream.take(self._dev_sizes[number])
            pieces = np.array_split(rows, math.ceil(len(rows) / self._trainer.args.train_batch_size))
            batches.append(DevBatch(name, [self._piece(learner, number, piece) for piece in pieces]))
        return batches

    def _piece(self, learner: TrainerLearner, number: int, rows: Rows) -> Piece:
        inputs = learner.place(self._collate(self._dev_rows.batch(number, rows)))
        return Piece(*self._trainer.collect_features(inputs))

    def _now(self) -> float:
        if self._trainer.args.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.args.device)
        return time.monotonic()


def _refuse_unsupported(trainer: MixtureTrainer) -> None:
    if trainer.accelerator.mixed_precision not in {"no", "bf16"}:
        raise RecipeError("probes do not work with fp16, whose loss scale they would change: use bf16 or fp32")
    kind = trainer.accelerator.distributed_type
    if kind not in {DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU}:
        raise RecipeError(f"probes need every process to hold the whole model, which {kind.value} does not give")
