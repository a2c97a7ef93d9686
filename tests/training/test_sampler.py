"""Which dataset next, and which rows of it.

- A batch is of one dataset; how often each is drawn follows the weights, those in force at the draw.
- Which rows a dataset gives next does not depend on the weights.
- All processes draw the same dataset and share out the rows one process alone would have had.
- No dataset is read beyond `max_epochs`, the others keep their ratios, and an impossible limit fails at the start.
- A state that went through JSON continues exactly, batches drawn ahead included, under whatever weights.
- A resumed epoch starts with as many empty batches as the Trainer throws away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixfluence.errors import RecipeError
from mixfluence.policy import Vector
from mixfluence.training.sampler import MixtureBatchSampler
from tests.training.test_streams import distinct_rows, stream_of


class Pool:
    """Datasets of distinct rows with weights that a test may turn."""

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float] | Vector, batch: int = 4, **options: Any
    ) -> None:
        self.weights = np.array(weights, np.float64)
        self.ends = np.cumsum(sizes)
        self.sampler = MixtureBatchSampler(
            [stream_of(distinct_rows(size), key) for key, size in enumerate(sizes)],
            lambda progress: self.weights,
            **{"batch_sizes": [min(batch, size) for size in sizes], "draws_per_epoch": 1_000, **options},
        )

    def dataset(self, batch: list[int]) -> int:
        (dataset,) = set(np.searchsorted(self.ends, batch, side="right").tolist())
        return int(dataset)


def take(batches: Iterator[list[int]], count: int) -> list[list[int]]:
    return [next(batches) for _ in range(count)]


def test_batches_hold_one_dataset_and_follow_the_weights() -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
    pool = Pool([100, 50, 20, 10, 5], weights, draws_per_epoch=4_000, seed=1)
    batches = list(pool.sampler)
    assert len(batches) == len(pool.sampler) == 4_000
    counts = np.bincount([pool.dataset(batch) for batch in batches], minlength=5)
    assert counts[4] == 0
    assert ((counts - 4_000 * weights)[:4] ** 2 / (4_000 * weights[:4])).sum() < 16  # p = 0.001 for three degrees
    assert pool.sampler.rows_drawn.tolist() == (4 * counts).tolist()


def test_another_seed_makes_other_choices() -> None:
    def choices(seed: int) -> list[int]:
        pool = Pool([10, 10], [0.5, 0.5], seed=seed)
        return [pool.dataset(batch) for batch in take(iter(pool.sampler), 64)]

    assert choices(1) == choices(1) != choices(2)


def test_new_weights_act_on_the_next_draw() -> None:
    pool = Pool([40, 40, 40], [1, 0, 0])
    batches = iter(pool.sampler)
    drawn = []
    for weights in ([1, 0, 0], [0, 0, 1], [0, 1, 0]):
        pool.weights = np.array(weights, np.float64)
        drawn.append({pool.dataset(batch) for batch in take(batches, 5)})
        assert pool.sampler.probabilities().tolist() == weights
    assert drawn == [{0}, {2}, {1}]


def test_which_rows_a_dataset_gives_does_not_depend_on_the_weights() -> None:
    pools = [Pool([30, 50], weights, draws_per_epoch=60) for weights in ([0.5, 0.5], [0.9, 0.1])]
    given_rows = [[batch for batch in pool.sampler if pool.dataset(batch) == 0] for pool in pools]
    shared = min(map(len, given_rows))
    assert shared > 20
    assert given_rows[0][:shared] == given_rows[1][:shared]


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_out_what_one_alone_would_draw(world: int) -> None:
    def batches(rank: int, world: int) -> list[list[int]]:
        return list(Pool([40, 25, 9], [0.4, 0.3, 0.3], batch=6, draws_per_epoch=50, rank=rank, world=world).sampler)

    alone = batches(0, 1)
    for whole, *parts in zip(alone, *(batches(rank, world) for rank in range(world)), strict=True):
        assert [len(part) for part in parts] == [len(whole) // world] * world
        assert sorted(row for part in parts for row in part) == sorted(whole)


def test_every_process_gets_a_row_of_a_dataset_smaller_than_their_number() -> None:
    shares = [list(Pool([2], [1], draws_per_epoch=10, rank=rank, world=3).sampler) for rank in range(3)]
    assert all(len(part) == 1 for share in shares for part in share)
    assert all({0, 1} == {row for part in parts for row in part} for parts in zip(*shares, strict=True))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 1)), min_size=1, max_size=5),
    st.floats(0.5, 3),
    st.integers(1, 6),
)
def test_no_dataset_is_read_beyond_the_epoch_limit(
    datasets: list[tuple[int, float]], max_epochs: float, batch: int
) -> None:
    sizes = np.array([size for size, _ in datasets])
    weights = np.array([weight for _, weight in datasets])
    most = int((np.floor(max_epochs * sizes) // np.minimum(batch, sizes)).sum())
    pool = Pool(sizes.tolist(), weights / weights.sum(), batch, draws_per_epoch=most, max_epochs=max_epochs)
    for _ in pool.sampler:
        assert (pool.sampler.rows_drawn <= max_epochs * sizes).all()
        assert pool.sampler.probabilities().sum() == pytest.approx(1)


def test_what_a_dataset_may_not_take_goes_to_the_others_in_their_ratio() -> None:
    pool = Pool([8, 1_000, 1_000], [0.8, 0.15, 0.05], draws_per_epoch=100, max_epochs=2)
    assert pool.sampler.probabilities() == pytest.approx([0.04, 0.72, 0.24])
    counts = np.bincount([pool.dataset(batch) for batch in pool.sampler], minlength=3)
    assert counts[0] <= 4
    assert counts[1] / counts[2] == pytest.approx(3, rel=0.5)


@pytest.mark.parametrize(("draws", "weights"), [(41, [0.5, 0.5]), (21, [1.0, 0.0])])
def test_an_epoch_limit_that_ends_before_the_run_fails_at_the_start(draws: int, weights: list[float]) -> None:
    with pytest.raises(RecipeError, match=f"max_epochs.* {draws - 1} .* {draws}"):
        Pool([40, 40], weights, draws_per_epoch=draws, max_epochs=2)


@settings(max_examples=40)
@given(st.integers(0, 15), st.integers(0, 15), st.sampled_from([None, 40.0]))
def test_a_state_through_json_continues_exactly(trained: int, ahead: int, max_epochs: float | None) -> None:
    options: dict[str, Any] = {"draws_per_epoch": 60, "max_epochs": max_epochs, "batch": 5}
    pool = Pool([23, 7, 40], [0.6, 0.3, 0.1], **options)
    batches = iter(pool.sampler)
    drawn = [pool.dataset(batch) for batch in take(batches, trained)]
    assert [pool.sampler.pop_trained().dataset for _ in drawn] == drawn
    fetched = take(batches, ahead)
    pool.weights = np.array([0.1, 0.1, 0.8])
    state = pool.sampler.state_dict()
    assert state["drawn_ahead"] == pool.sampler.drawn_ahead == [pool.dataset(batch) for batch in fetched]

    resumed = Pool([23, 7, 40], [0.1, 0.1, 0.8], **options)
    resumed.sampler.load_state_dict(json.loads(json.dumps(state)))
    again = iter(resumed.sampler)
    assert take(again, trained) == [[]] * trained
    assert take(again, ahead) == fetched
    assert list(again) == list(batches)
    assert resumed.sampler.rows_drawn.tolist() == pool.sampler.rows_drawn.tolist()
    assert resumed.sampler.drawn_ahead == pool.sampler.drawn_ahead


def test_a_resumed_epoch_starts_with_what_the_trainer_discards() -> None:
    pool = Pool([30, 30], [0.5, 0.5], draws_per_epoch=5, epochs=3)
    batches = [batch for _ in range(3) for batch in pool.sampler][:12]
    for _ in batches:
        pool.sampler.pop_trained()
    resumed = Pool([30, 30], [0.5, 0.5], draws_per_epoch=5, epochs=3)
    resumed.sampler.load_state_dict(pool.sampler.state_dict())
    epoch = list(resumed.sampler)
    assert [len(batch) for batch in epoch] == [0] * 2 + [4] * 3
    assert [len(batch) for batch in resumed.sampler] == [4] * 5
