"""Group-DRO on losses that are known beforehand.

- With fixed scores and every dataset in turn, alpha equals the published rule, which sees all datasets at once; with
  two datasets it does so after every step, in closed form, smoothing and average included.
- Equal scores change nothing, however often a dataset is drawn. A proxy equal to its reference keeps alpha and loss
  factors of 1. A dataset that stays behind rises to the limit set by the smoothing.
- DoReMi clips each query's excess before the mean. TDRO takes ratios, except for queries the reference has solved,
  and ignores their scale.
- Losses that are not finite are ignored, one batch moves the odds by a factor of e at most, and a restored state
  continues bitwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from mixfluence.errors import RecipeError
from mixfluence.strategies import TDRO, DoReMi, GroupDRO
from tests.recipes import small_recipe

Floats = NDArray[np.float64]
Kind = TypeVar("Kind", bound=GroupDRO)


def started(strategy: Kind, count: int) -> Kind:
    strategy.start({f"d{i}": 10 * (i + 1) for i in range(count)})
    return strategy


def visit(strategy: GroupDRO, dataset: int, excess: float) -> float:
    """Weigh a batch of two queries on which the reference loses 2 nats, and the proxy more by the excess."""
    reference = np.array([2.0, 2.0])
    return strategy.weigh(dataset, reference + excess, reference)


def published(alpha: Floats, scores: Floats, rate: float) -> Floats:
    """One step of the rule that sees every dataset at once, without smoothing."""
    moved = alpha * np.exp(rate * scores)
    return np.asarray(moved / moved.sum())


def test_two_datasets_follow_the_published_rule_step_by_step() -> None:
    strategy = started(DoReMi(rate=0.5, smoothing=0.0), 2)
    visit(strategy, 0, 0.3)
    assert strategy.alpha.tolist() == pytest.approx([0.5, 0.5])
    # From then on each step is one of both datasets at once, whichever is drawn: the odds grow by exp(rate x 0.4).
    for steps, dataset in enumerate([1, 0, 0, 1, 1, 1, 0], start=1):
        weight = visit(strategy, dataset, [0.3, 0.7][dataset])
        odds = math.exp(0.5 * 0.4 * steps)
        expected = np.array([1, odds]) / (1 + odds)
        assert strategy.alpha == pytest.approx(expected, rel=1e-12)
        assert weight == pytest.approx(2 * expected[dataset], rel=1e-12)


def test_datasets_in_turn_follow_the_published_rule() -> None:
    scores = np.array([0.1, 0.4, 0.0, 0.9])
    strategy = started(DoReMi(rate=0.03, smoothing=0.0), 4)
    for dataset in range(4):
        visit(strategy, dataset, scores[dataset])
    expected = strategy.alpha
    for _ in range(5):
        for dataset in [2, 0, 3, 1]:
            visit(strategy, dataset, scores[dataset])
            expected = published(expected, scores, 0.03)
        assert strategy.alpha == pytest.approx(expected, rel=1e-12)
    assert np.argsort(strategy.alpha).tolist() == [2, 0, 1, 3]


def test_smoothing_and_average() -> None:
    strategy = started(DoReMi(rate=0.5, smoothing=0.2), 2)
    assert strategy.outcome().tolist() == [0.5, 0.5]
    expected = np.array([0.5, 0.5])
    seen: list[Floats] = []
    for dataset in [0, 1, 1, 0]:
        visit(strategy, dataset, [0.3, 0.7][dataset])
        if seen:
            expected = 0.8 * published(expected, np.array([0.3, 0.7]), 0.5) + 0.1
        seen.append(expected)
        assert strategy.alpha == pytest.approx(expected, rel=1e-12)
    assert strategy.outcome() == pytest.approx(np.mean(seen, axis=0), rel=1e-12)
    assert strategy.outcome().sum() == pytest.approx(1)
    assert strategy.outcome()[1] < strategy.alpha[1]


@pytest.mark.parametrize("make", [DoReMi, TDRO])
def test_equal_scores_change_nothing_however_often_a_dataset_is_drawn(make: Callable[[], GroupDRO]) -> None:
    strategy = started(make(), 5)
    for dataset in [0, 1, 2, 3, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4]:
        assert visit(strategy, dataset, 0.7) == pytest.approx(1, abs=1e-12)
    assert strategy.alpha == pytest.approx(np.full(5, 0.2), abs=1e-12)


@pytest.mark.parametrize("make", [DoReMi, TDRO])
def test_a_proxy_like_its_reference_keeps_alpha(make: Callable[[], GroupDRO]) -> None:
    strategy = started(make(), 3)
    random = np.random.default_rng(0)
    for dataset in [0, 0, 1, 2, 1, 0]:
        losses = random.uniform(0.1, 4, 16)
        assert strategy.weigh(dataset, losses, losses) == pytest.approx(1, abs=1e-12)
    assert strategy.alpha == pytest.approx(np.full(3, 1 / 3), abs=1e-12)


@pytest.mark.parametrize("make", [DoReMi, TDRO])
def test_a_dataset_that_stays_behind_rises(make: Callable[[], GroupDRO]) -> None:
    strategy = started(make(), 4)
    values = []
    for _ in range(50):
        for dataset in range(4):
            visit(strategy, dataset, 0.5 if dataset == 3 else 0.1)
        values.append(strategy.alpha[3])
    assert (np.diff(values[1:]) > 0).all()
    assert values[-1] > 0.3 > 0.25 > strategy.alpha[:3].max()
    assert strategy.weights().tolist() == [0.25] * 4


def test_smoothing_keeps_every_dataset() -> None:
    strategy = started(DoReMi(rate=1.0, smoothing=0.01), 4)
    for _ in range(200):
        for dataset in range(4):
            visit(strategy, dataset, 3.0 if dataset == 0 else 0.0)
            assert strategy.alpha.min() >= 0.01 / 4
    assert strategy.alpha[0] > 0.9


def test_the_weights_of_uniform_draws_give_the_loss_under_alpha() -> None:
    strategy = started(DoReMi(), 3)
    for dataset, excess in [(0, 0.2), (1, 3.0), (2, 0.9), (0, 0.2), (1, 2.0), (2, 0.9)]:
        visit(strategy, dataset, excess)
    broken = np.array([np.nan])
    drawn = [strategy.weigh(dataset, broken, broken) for dataset in range(3)]
    assert np.mean(drawn) == pytest.approx(1)
    losses = np.array([1.0, 5.0, 2.0])
    assert strategy.weights() @ (drawn * losses) == pytest.approx(strategy.alpha @ losses)
    assert drawn[1] > drawn[2] > drawn[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_ignored(bad: float) -> None:
    strategy = started(DoReMi(), 2)
    visit(strategy, 0, 0.1)
    visit(strategy, 1, 1.0)
    before = strategy.state_dict()
    good = np.array([1.0, 2.0])
    for losses, reference in [(np.array([bad, 1.0]), good), (good, np.array([1.0, bad]))]:
        assert strategy.weigh(0, losses, reference) == pytest.approx(2 * strategy.alpha[0])
    assert strategy.state_dict() == before


@pytest.mark.parametrize(("excess", "move"), [(1e6, 1.0), (0.0, -1.0)])
def test_one_batch_moves_the_odds_by_no_more_than_e(excess: float, move: float) -> None:
    strategy = started(DoReMi(rate=5.0, smoothing=0.0), 2)
    visit(strategy, 0, 100.0)
    visit(strategy, 1, excess)
    assert math.log(strategy.alpha[1] / strategy.alpha[0]) == pytest.approx(move)


def test_doremi_clips_each_query_before_the_mean() -> None:
    assert DoReMi().score(np.array([1.0, 3.0, 2.5]), np.array([2.0, 2.0, 2.0])) == pytest.approx(0.5)


def test_tdro_takes_ratios_without_what_the_reference_has_solved() -> None:
    losses, reference = np.array([3.0, 0.5, 0.2, -1e-9]), np.array([2.0, 0.05, 0.049, 1.0])
    assert TDRO().score(losses, reference) == pytest.approx((1.5 + 10 + 0.2 + 0) / 4)


def test_tdro_steps_by_the_share_in_the_norm() -> None:
    strategy = started(TDRO(rate=0.1), 2)
    reference = np.array([1.0])
    for dataset, ratio in [(0, 3.0), (1, 4.0), (0, 3.0)]:
        strategy.weigh(dataset, ratio * reference, reference)
    # Twice: rate x 2 datasets x half the difference of 3 / 5 and 4 / 5.
    assert math.log(strategy.alpha[1] / strategy.alpha[0]) == pytest.approx(2 * 0.1 * 0.2)


def test_tdro_ignores_the_scale_of_ratios() -> None:
    one, other = started(TDRO(), 3), started(TDRO(), 3)
    reference = np.array([1.0, 1.0])
    for dataset, ratio in [(0, 0.1), (1, 0.6), (2, 0.2), (1, 0.7), (0, 0.3)]:
        one.weigh(dataset, ratio * reference, reference)
        other.weigh(dataset, 512 * ratio * reference, reference)
    assert one.alpha == pytest.approx(other.alpha, rel=1e-12)
    assert one.alpha.max() > 0.34
    assert np.isfinite([started(TDRO(), 2).weigh(0, 0 * reference, reference)]).all()


def test_tdro_ends_on_the_last_alpha_or_on_the_best_datasets() -> None:
    outcomes = {}
    for keep in (None, 1.0, 0.7, 0.5, 0.01):
        strategy = started(TDRO(keep=keep), 4)
        for _ in range(3):
            for dataset, excess in enumerate([0.4, 1.5, 0.1, 0.9]):
                visit(strategy, dataset, excess)
        outcomes[keep] = strategy.outcome().tolist()
    assert outcomes[None] == strategy.alpha.tolist() != (strategy._sum / strategy._steps).tolist()
    assert outcomes[1.0] == [0.25] * 4
    assert outcomes[0.7] == outcomes[0.5] == [0, 0.5, 0, 0.5]
    assert outcomes[0.01] == [0, 1, 0, 0]


@pytest.mark.parametrize("make", [DoReMi, lambda: TDRO(keep=0.5)])
def test_a_restored_state_continues_bitwise(make: Callable[[], GroupDRO]) -> None:
    random = np.random.default_rng(1)
    batches = [(int(i), random.uniform(0, 4, 8), random.uniform(0, 4, 8)) for i in random.integers(4, size=30)]
    whole = started(make(), 5)  # the last dataset is never visited
    for batch in batches[:10]:
        whole.weigh(*batch)
    resumed = started(make(), 5)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict(), allow_nan=False)))
    for batch in batches[10:]:
        assert whole.weigh(*batch) == resumed.weigh(*batch)
    assert whole.state_dict() == resumed.state_dict()
    assert whole.outcome().tolist() == resumed.outcome().tolist()
    assert whole.alpha.std() > 0.001


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DoReMi(rate=0), "rate"),
        (lambda: TDRO(rate=math.nan), "rate"),
        (lambda: DoReMi(smoothing=1), "smoothing"),
        (lambda: DoReMi(smoothing=-0.1), "smoothing"),
        (lambda: TDRO(keep=0), "keep"),
        (lambda: TDRO(keep=1.1), "keep"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], GroupDRO], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


@pytest.mark.parametrize("other", [{"strategy": "doremi"}, {"train": {"a": {"loss": "m3-kd"}, "b.c": {}}}])
def test_a_name_that_no_loss_can_have_is_refused_with_the_recipe(other: dict[str, Any]) -> None:
    assert small_recipe(train=["a", "b.c"])
    with pytest.raises(ValueError, match=r"train\.b\.c: names must not contain a dot"):
        small_recipe(**{"train": ["a", "b.c"]} | other)
