"""A strategy walked through its steps without a model: when it would measure, what it draws, what a round costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from mixfluence.planning import costs
from mixfluence.policy import Vector, cap
from mixfluence.recipe import TrainingSection

if TYPE_CHECKING:
    from mixfluence.strategies import Strategy

# A schedule is looked at this often at most.
POINTS = 1_000
# Rows of a dataset whose size is not known: enough for any batch.
GUESS = 1_000_000


def relative_rate(step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate after some steps in parts of its greatest: up in a line, then down in a line."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (steps - step) / max(1, steps - warmup_steps))


def updates(strategy: Strategy, steps: int, warmup_steps: int) -> Iterator[int]:
    """Yield the steps after which a started strategy would measure; none after the last."""
    if strategy.probe is None:
        return
    for step in range(1, steps):
        if strategy.due(step, relative_rate(step, steps, warmup_steps)):
            if not len(strategy.candidates()):
                _look(strategy)
            yield step


def _look(strategy: Strategy) -> None:
    """Let a strategy see dev sets that never change: how many looks it wants depends on those it has had."""
    from mixfluence.influence import Influences

    none = np.array([], np.int64)
    strategy.update(Influences(none, none, ["dev"], np.zeros(1), [np.zeros((0, 1))]))


def mean_weights(strategy: Strategy, rows: Mapping[str, int | None], draws: int) -> Vector | None:
    """Return the probability of each dataset, over the run if it keeps a schedule, before anything is measured.

    Args:
        strategy: Will be started anew.
        rows: Sizes as far as they are known.
        draws: Batches that will be drawn.

    Returns:
        None if it depends on a size that is not known.
    """
    # Whether sizes matter is seen by trying others, whatever the strategy.
    guesses = guessed(rows), {name: size or number for number, (name, size) in enumerate(rows.items(), 1)}
    first, second = (_mean_weights(strategy, sizes, min(draws, POINTS)) for sizes in guesses)
    return first if np.allclose(first, second, rtol=1e-9, atol=0) else None


def _mean_weights(strategy: Strategy, sizes: Mapping[str, int], points: int) -> Vector:
    strategy.start(sizes)
    return np.asarray(np.mean([strategy.weights(point / points) for point in range(points)], axis=0))


def guessed(rows: Mapping[str, int | None]) -> dict[str, int]:
    """Return sizes with a guess for those that are not known."""
    return {name: GUESS if size is None else size for name, size in rows.items()}


def batch_rows(sizes: Vector, batch_size: int, processes: int) -> Vector:
    """Return the rows of a batch of each dataset, over all processes that share it: all have as many, at least one."""
    return np.asarray(np.maximum(1, np.minimum(batch_size, sizes // processes)) * processes)


def within_epochs(weights: Vector, sizes: Vector, batches: Vector, draws: int, max_epochs: float | None) -> Vector:
    """Return the part of the draws that each dataset gets if no row may be seen more than `max_epochs` times."""
    if max_epochs is None:
        return weights
    return cap(weights, np.floor(max_epochs * sizes) // batches / draws)


def round_cost(
    strategy: Strategy,
    sizes: Mapping[str, int],
    dev_sizes: Mapping[str, int],
    training: TrainingSection,
    processes: int,
) -> float:
    """Return what one round of a started strategy costs, in training steps.

    Probes are shared out, each with its look at dev, and the round lasts as long as the process that has most of them.
    The look before them is taken by every process. Gradients are of batches that all processes have a part of, those
    of dev of all its rows on each.

    Args:
        strategy: One that measures.
        sizes: Rows of each dataset.
        dev_sizes: Rows of each dev set.
        training: Says what a process has of a training step.
        processes: How many there are.
    """
    from mixfluence.influence import Alignment

    probe = strategy.probe
    assert probe is not None
    rows_per_step = training.batch_size * training.gradient_accumulation
    dev = sum(min(probe.dev_batch_size, rows) for rows in dev_sizes.values()) / rows_per_step
    possible = strategy.candidates()
    if not len(possible):
        return costs.look(dev)
    measured = min(strategy.subset or len(possible), len(possible))
    sharing = 1 if probe.alone else processes
    rows = batch_rows(np.array(list(sizes.values()))[possible], probe.batch_size or training.batch_size, sharing)
    batch = float(rows.mean()) / sharing / rows_per_step
    if isinstance(probe, Alignment):
        return costs.alignment_round(measured, batch, dev, lookahead=probe.lookahead)
    return costs.probe_round(math.ceil(measured / processes), batch, strategy.inner_steps, dev)


def round_memory(strategy: Strategy) -> float:
    """Return what a round of a started strategy keeps on the device, in parameter sizes."""
    from mixfluence.influence import Alignment, Probe

    if not len(strategy.candidates()):
        return 0.0
    match strategy.probe:
        case Alignment(lookahead=lookahead):
            return costs.alignment_memory(lookahead=lookahead)
        case Probe(state=state, snapshot=snapshot):
            reptile = strategy.reptile is not None
            return costs.probe_memory(inherited=state == "inherited", on_host=snapshot == "host", reptile=reptile)
        case _:
            return 0.0
