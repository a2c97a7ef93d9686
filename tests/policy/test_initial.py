"""Sampling probabilities and the strategy that never changes them.

- Temperature 1 is proportional to size and infinity is uniform; 0.3 on the paper's sizes gives the paper's shares.
- No size or temperature overflows, and the order of the datasets does not matter.
- Weights are rescaled; a zero is never drawn; a missing or misspelt name is an error that says which.
- `lift` sums to one and is never below the floor; a floor that does not fit is an error.
- `cap` sums to one, keeps every limit it can, favours nobody among the uncapped and leaves loose limits alone.
- `Static` gives its distribution unchanged, keeps no state and refuses somebody else's.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM, Temperature, Vector, Weights, cap, lift, softmax
from mixfluence.strategies import STRATEGIES, Static

# The paper's seven training datasets with the shares it prints for a temperature of 0.3.
BEIR_7 = {
    "msmarco": 499184,
    "fever": 109810,
    "nq": 100231,
    "hotpotqa": 85000,
    "fiqa": 5500,
    "nfc": 2590,
    "scifact": 809,
}
PAPER_SHARES = [0.9863, 0.0063, 0.0047, 0.0027, 2.9e-7, 2.4e-8, 4.9e-10]

some_sizes = st.lists(st.integers(1, 10**12), min_size=1, max_size=30)
shares = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12).map(lambda parts: np.array(parts) / sum(parts))


@st.composite
def capped_shares(draw: st.DrawFn) -> tuple[Vector, Vector]:
    """Probabilities, and limits that leave room for them."""
    probabilities = draw(shares)
    limits = draw(st.lists(st.floats(0, 1), min_size=len(probabilities), max_size=len(probabilities)).map(np.array))
    assume(limits.sum() >= 1)
    return probabilities, limits


def named(sizes: list[int]) -> dict[str, int]:
    return {f"d{number}": size for number, size in enumerate(sizes)}


@given(some_sizes)
def test_temperature_one_is_proportional_and_infinity_uniform(sizes: list[int]) -> None:
    assert softmax(Temperature(1.0).logits(named(sizes))) == pytest.approx(np.array(sizes) / sum(sizes), rel=1e-9)
    assert softmax(UNIFORM.logits(named(sizes))) == pytest.approx(np.full(len(sizes), 1 / len(sizes)))


def test_the_papers_temperature_gives_the_papers_shares() -> None:
    assert softmax(Temperature(0.3).logits(BEIR_7)) == pytest.approx(PAPER_SHARES, rel=0.02)


@given(some_sizes, st.floats(0.01, 100))
def test_no_size_or_temperature_overflows(sizes: list[int], tau: float) -> None:
    probabilities = softmax(Temperature(tau).logits(named(sizes)))
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1)
    assert probabilities[np.argmax(sizes)] == probabilities.max() > 0


@given(st.permutations(list(BEIR_7)), st.floats(0.1, 10))
def test_the_order_of_datasets_does_not_matter(order: list[str], tau: float) -> None:
    for initial in (Temperature(tau), Weights({name: len(name) for name in BEIR_7})):
        known = dict(zip(BEIR_7, initial.logits(BEIR_7), strict=True))
        assert initial.logits({name: BEIR_7[name] for name in order}).tolist() == [known[name] for name in order]


@pytest.mark.parametrize("tau", [0, -1, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(tau: float) -> None:
    with pytest.raises(RecipeError, match="temperature"):
        Temperature(tau)


def test_weights_are_rescaled_and_zero_is_never_drawn() -> None:
    probabilities = softmax(Weights({"b": 6, "a": 2, "c": 0}).logits({"a": 1, "b": 1, "c": 1}))
    assert probabilities == pytest.approx([0.25, 0.75, 0])
    assert probabilities[2] == 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"fiqa": 1}, "no weight for 'nq', 'scifact'"),
        ({"fiqa": 1, "nq": 1, "sci-fact": 1}, "'sci-fact', which is not a training dataset; did you mean 'scifact'"),
        ({"fiqa": 1, "nq": 1, "scifact": 1, "trec": 1}, "'trec', which is not a training dataset$"),
    ],
)
def test_weights_for_other_datasets_are_refused_by_name(weights: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Weights(weights).logits({"fiqa": 1, "nq": 1, "scifact": 1})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": -1, "b": 1}, "weights.a"),
        ({"a": 1, "b": math.nan}, "weights.b"),
        ({"a": math.inf}, "weights.a"),
        ({"a": 0, "b": 0}, "at least one weight must be above 0"),
        ({}, "at least one weight must be above 0"),
    ],
)
def test_impossible_weights_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Weights(weights)


@given(shares, st.floats(0, 1))
def test_lift_sums_to_one_and_keeps_the_floor_and_the_order(probabilities: Vector, part: float) -> None:
    floor = part / len(probabilities)
    lifted = lift(probabilities, floor)
    assert lifted.sum() == pytest.approx(1)
    assert lifted.min() >= floor
    assert (np.diff(lifted[np.argsort(probabilities)]) >= -1e-12).all()


@pytest.mark.parametrize("floor", [0.3, -0.01, math.nan])
def test_a_floor_that_does_not_fit_is_refused(floor: float) -> None:
    with pytest.raises(RecipeError, match=r"must lie between 0 and 0\.25"):
        lift(np.full(4, 0.25), floor)


@given(capped_shares())
def test_cap_keeps_limits_and_pours_the_excess_evenly(given_: tuple[Vector, Vector]) -> None:
    probabilities, limits = given_
    capped = cap(probabilities, limits)
    assert capped.sum() == pytest.approx(1)
    assert (capped <= limits + 1e-9).all()
    growth = capped / probabilities
    free = capped < limits - 1e-9
    assert growth[free] == pytest.approx(np.full(free.sum(), growth.max()))


@given(shares, st.floats(1, 2))
def test_cap_leaves_loose_limits_alone(probabilities: Vector, slack: float) -> None:
    assert cap(probabilities, probabilities * slack) == pytest.approx(probabilities, rel=1e-12)


def test_limits_below_one_are_shared_out_and_no_limit_at_all_is_no_error() -> None:
    probabilities = np.array([0.7, 0.2, 0.1])
    assert cap(probabilities, np.array([0.1, 0.0, 0.3])) == pytest.approx([0.25, 0, 0.75])
    assert cap(probabilities, np.zeros(3)).tolist() == probabilities.tolist()


def test_static_gives_its_distribution_and_keeps_no_state() -> None:
    strategy = STRATEGIES["static"]()
    strategy.start({"a": 1, "b": 3})
    assert strategy.weights() == pytest.approx([0.25, 0.75])
    assert strategy.state_dict() == {}
    strategy.load_state_dict({})
    assert strategy.weights() == pytest.approx([0.25, 0.75])
    with pytest.raises(ValueError, match="Static keeps no state, found \\['logits'\\]"):
        strategy.load_state_dict({"logits": [0, 0]})


def test_static_lifts_to_its_floor_and_refuses_a_limit_of_no_epoch() -> None:
    strategy = Static(init=Weights({"a": 0, "b": 1}), floor=0.1, max_epochs=2)
    strategy.start({"a": 5, "b": 5})
    assert strategy.weights() == pytest.approx([0.1, 0.9])
    assert strategy.max_epochs == 2
    with pytest.raises(RecipeError, match="max_epochs"):
        Static(max_epochs=0)
