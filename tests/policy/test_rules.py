"""How rewards move logits, rule by rule and through `InfDDS.update`.

Every rule:

- Adding a constant to all influences changes nothing, nor does anything that a dev query has in common for all
  datasets; equal influences change nothing, not even after rounds that were not equal.
- Logits and moments of datasets that were not probed stay as they are to the last bit.
- Rewards that nobody trusts change nothing, not even moments, and behind a closed gate no logit leaves the start.
- Two copies of one dataset stay together.
- What is saved as JSON continues exactly, also where a dataset has weight zero; such a dataset is never a candidate.

One by one:

- `PolicyGradient` is the gradient of sum_i P(i|S) I_i. Averaged over subsets it has the direction of the full one:
  exactly where probabilities are equal, by a positive cosine in proportion to size. Its Adam is torch's.
- `Anchored` is at the trusted mean of its rounds, never leaves its reach, and stays when rewards are not trusted any
  more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mixfluence.errors import RecipeError
from mixfluence.influence import Influences
from mixfluence.policy import (
    RULES,
    UNIFORM,
    Anchored,
    Evidence,
    Fair,
    PolicyGradient,
    Reward,
    Rule,
    Temperature,
    Vector,
    Weights,
    softmax,
)
from mixfluence.strategies import InfDDS, Static
from tests.policy.test_initial import BEIR_7 as SIZES

MakeRule = Callable[[], Rule]

START = Temperature(1.0).logits(SIZES)

ONE_NUMBER = {name: rule for name, rule in RULES.items() if not rule.by_target}
every_rule = pytest.mark.parametrize("make", [*ONE_NUMBER.values(), Fair], ids=[*ONE_NUMBER, "fair"])
# Rules that combine the targets into one number per dataset; `fair` is in test_fair.py.
every_simple_rule = pytest.mark.parametrize("make", ONE_NUMBER.values(), ids=list(ONE_NUMBER))
# Multiples of a power of two, which add up without rounding.
influence = st.integers(-2048, 2048).map(lambda number: number / 1024)
seven = st.lists(influence, min_size=7, max_size=7).map(np.array)
rounds_of_seven = st.lists(seven, min_size=1, max_size=4)
# Where every rule is tried, each needs fewer.
fewer = settings(max_examples=25)


def reward(
    values: Sequence[float] | Vector,
    probed: Iterable[int] | None = None,
    *,
    gate: float = 1.0,
    trust: Sequence[float] | Vector | float | None = None,
) -> Reward:
    """The reward of values that are known exactly, or believed as little as given."""
    positions = np.arange(len(values)) if probed is None else np.array(list(probed))
    exactly = Evidence(shrink=False, gate=False)
    judged = exactly.judge(positions, np.asarray(values, dtype=float), np.zeros(len(values)))
    trusted = judged.trust if trust is None else np.broadcast_to(np.asarray(trust, dtype=float), len(values))
    return replace(judged, gate=gate, trust=trusted)


def measured(gains: Vector, probed: Sequence[int] | None = None) -> Influences:
    """A round with one target, from gains of datasets x queries."""
    positions = np.arange(len(gains)) if probed is None else np.array(probed)
    return Influences(positions, np.array([], np.int64), ["dev"], np.ones(1), [gains])


def follow(rule: Rule, rewards: Iterable[Reward], start: Vector = START) -> Vector:
    """Return where a rule ends after some rounds."""
    rule.start(start)
    logits = start
    for round_ in rewards:
        logits = rule.move(logits, round_)
    return logits


def gradient_of(round_: Reward, start: Vector = START) -> Vector:
    """Return the gradient that Adam is given: its first moment if it forgets all others."""
    rule = PolicyGradient(betas=[0.0, 0.0])
    follow(rule, [round_], start)
    return np.array(rule.state_dict()["mean"])


def run(make: MakeRule, rounds: Iterable[Influences], sizes: dict[str, int] = SIZES, **options: Any) -> InfDDS:
    """Return a strategy after some rounds."""
    strategy = InfDDS(rule=make(), **options)
    strategy.start(sizes)
    for influences in rounds:
        strategy.update(influences)
    return strategy


def noisy_rounds(count: int, *, datasets: int = 7, queries: int = 16) -> list[Vector]:
    """Gains that differ between datasets more than queries explain, and partly agree between rounds."""
    rng = np.random.default_rng(count)
    worth = rng.normal(size=(datasets, 1))
    return [worth + rng.normal(0, 0.3, (datasets, 1)) + rng.normal(size=(datasets, queries)) for _ in range(count)]


def cosine(one: Vector, other: Vector) -> float:
    return float(one @ other / math.sqrt((one @ one) * (other @ other)))


@every_simple_rule
@fewer
@given(rounds=rounds_of_seven, constant=influence)
def test_a_constant_added_to_all_influences_changes_nothing(
    make: MakeRule, rounds: list[Vector], constant: float
) -> None:
    moved = follow(make(), map(reward, rounds))
    shifted = follow(make(), [reward(values + constant) for values in rounds])
    # Adam makes a step of some size even of a gradient that is rounding.
    assert shifted == pytest.approx(moved, abs=1e-5)


@every_rule
def test_what_a_query_has_in_common_for_all_datasets_changes_no_update(make: MakeRule) -> None:
    rounds = noisy_rounds(6)
    common = np.random.default_rng(1).normal(0, 5, (6, 16))
    plain = run(make, map(measured, rounds))
    shifted = run(make, [measured(gains + query) for gains, query in zip(rounds, common, strict=True)])
    assert np.abs(plain.logits - START).max() > 0.01
    assert shifted.logits == pytest.approx(plain.logits, abs=1e-8)


@every_simple_rule
@fewer
@given(rounds=rounds_of_seven, value=st.floats(-10, 10))
def test_equal_influences_change_nothing_even_after_rounds_that_were_not(
    make: MakeRule, rounds: list[Vector], value: float
) -> None:
    rule = make()
    logits = follow(rule, map(reward, rounds))
    state = rule.state_dict()
    assert rule.move(logits, reward(np.full(7, value))).tolist() == logits.tolist()
    assert rule.move(logits, reward(np.full(3, value), [1, 4, 5])).tolist() == logits.tolist()
    assert rule.state_dict() == state


@every_rule
def test_equal_influences_change_nothing_in_an_update(make: MakeRule) -> None:
    strategy = run(make, map(measured, noisy_rounds(3)))
    before = strategy.state_dict()
    # Queries differ, datasets do not.
    said = strategy.update(measured(np.tile(np.random.default_rng(2).normal(size=16), (7, 1))))
    assert strategy.state_dict() == before
    assert said["trust"] == [0.0] * 7


@every_simple_rule
@fewer
@given(rounds=rounds_of_seven, values=seven, gate=st.floats(0, 1))
def test_what_nobody_trusts_changes_nothing_even_after_rounds_that_were(
    make: MakeRule, rounds: list[Vector], values: Vector, gate: float
) -> None:
    rule = make()
    logits = follow(rule, map(reward, rounds))
    state = rule.state_dict()
    assert rule.move(logits, reward(values, gate=gate, trust=0)).tolist() == logits.tolist()
    assert rule.state_dict() == state


@every_simple_rule
@fewer
@given(rounds=rounds_of_seven)
def test_behind_a_closed_gate_no_logit_leaves_the_start(make: MakeRule, rounds: list[Vector]) -> None:
    assert follow(make(), [reward(values, gate=0) for values in rounds]).tolist() == START.tolist()


@every_rule
def test_an_update_says_what_was_measured_and_how_far_it_is_believed(make: MakeRule) -> None:
    strategy, evidence = run(make, []), Evidence()
    for gains in noisy_rounds(5):
        said = strategy.update(measured(gains))
        values, errors = measured(gains).combine()
        expected = evidence.judge(np.arange(7), values, errors)
        assert said == {
            "influence": values.tolist(),
            "error": errors.tolist(),
            "trust": expected.trust.tolist(),
            "gate": expected.gate,
        }
        assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert said["gate"] > 0.5
    assert 0 < min(said["trust"]) < max(said["trust"]) < 1


@pytest.mark.parametrize(("shrink", "gate"), [(True, False), (False, True), (False, False)])
def test_a_strategy_without_trust_or_gate_takes_rounds_in_full(shrink: bool, gate: bool) -> None:
    said = run(Anchored, [], shrink=shrink, gate=gate).update(measured(noisy_rounds(1)[0]))
    assert (said["gate"] == 1) is not gate
    assert (said["trust"] == [1.0] * 7) is not shrink


@every_simple_rule
@fewer
@given(data=st.data())
def test_what_was_not_probed_stays_to_the_last_bit(make: MakeRule, data: st.DataObject) -> None:
    rule = make()
    logits = follow(rule, [reward([0.3, -0.1, 0.7, 0.2, 0.0, -0.9, 0.4])])
    for _ in range(3):
        probed = sorted(data.draw(st.sets(st.integers(0, 6), min_size=2, max_size=6)))
        rest = [number for number in range(7) if number not in probed]
        values = data.draw(st.lists(influence, min_size=len(probed), max_size=len(probed)))
        before, state = logits.tolist(), rule.state_dict()
        moved = rule.move(logits, reward(values, probed))
        assert logits.tolist() == before, "the given logits are not written to"
        assert moved[rest].tolist() == logits[rest].tolist()
        for name, kept in rule.state_dict().items():
            assert [kept[number] for number in rest] == [state[name][number] for number in rest], name
        logits = moved


@every_rule
@fewer
@given(rounds=st.lists(st.lists(influence, min_size=4, max_size=4), min_size=1, max_size=5))
def test_two_copies_of_one_dataset_stay_together(make: MakeRule, rounds: list[list[float]]) -> None:
    gains = [np.array([[values[0]] * 3, [values[1]] * 3, [values[0]] * 3, values[1:]]) for values in rounds]
    strategy = run(make, map(measured, gains), {"copy": 50, "other": 7, "same": 50, "noisy": 900})
    assert strategy.logits[0] == pytest.approx(strategy.logits[2], abs=1e-12)


@every_simple_rule
def test_a_rule_read_back_from_json_continues_exactly(make: MakeRule) -> None:
    rewards = [reward(gains.mean(axis=1)) for gains in noisy_rounds(4)]
    rewards.insert(2, reward([0.5, -0.5], [1, 6]))
    rule, resumed = make(), make()
    logits = follow(rule, rewards[:3])
    resumed.start(START)
    resumed.load_state_dict(json.loads(json.dumps(rule.state_dict(), allow_nan=False)))
    for round_ in rewards[3:]:
        again = resumed.move(logits, round_)
        logits = rule.move(logits, round_)
        assert again.tolist() == logits.tolist()
    assert resumed.state_dict() == rule.state_dict()


@every_rule
def test_a_strategy_read_back_from_json_continues_exactly_also_with_a_weight_of_zero(make: MakeRule) -> None:
    weights = without("nq")
    probed = [0, 1, 3, 4, 5, 6]
    rounds = [measured(gains, probed) for gains in noisy_rounds(6, datasets=6)]
    strategy = run(make, rounds[:3], init=weights)
    resumed = run(make, [], init=weights)
    resumed.load_state_dict(json.loads(json.dumps(strategy.state_dict(), allow_nan=False)))
    assert resumed.logits.tolist() == strategy.logits.tolist()
    for influences in rounds[3:]:
        assert resumed.update(influences) == strategy.update(influences)
        assert resumed.logits.tolist() == strategy.logits.tolist()
    assert resumed.state_dict() == strategy.state_dict()
    assert strategy.weights()[2] == 0
    assert np.isfinite(strategy.logits[probed]).all()


def without(*names: str) -> Weights:
    return Weights({name: 0.0 if name in names else size for name, size in SIZES.items()})


@every_rule
def test_datasets_of_weight_zero_that_only_a_floor_lets_in_are_no_candidates(make: MakeRule) -> None:
    strategy = run(make, [], init=without("nq", "fever"), floor=0.01)
    assert strategy.candidates().tolist() == [0, 3, 4, 5, 6]
    for gains in noisy_rounds(5, datasets=5):
        strategy.update(measured(gains, strategy.candidates().tolist()))
        assert strategy.candidates().tolist() == [0, 3, 4, 5, 6]
        assert strategy.weights().sum() == pytest.approx(1)
        assert strategy.weights()[[1, 2]].tolist() == [0.01, 0.01]
    resumed = run(make, [], init=without("nq", "fever"), floor=0.01)
    resumed.load_state_dict(json.loads(json.dumps(strategy.state_dict(), allow_nan=False)))
    assert resumed.candidates().tolist() == [0, 3, 4, 5, 6]


def test_a_dataset_too_unlikely_for_a_float_is_a_candidate_as_long_as_its_logit_can_move() -> None:
    strategy = run(Anchored, [], init=Temperature(0.005))
    assert strategy.weights()[-1] == 0
    assert strategy.candidates().tolist() == list(range(7))


def test_without_logits_candidates_are_all_that_may_be_drawn() -> None:
    for floor, expected in (0.0, [0, 1, 3, 4, 5, 6]), (0.01, list(range(7))):
        strategy = Static(init=without("nq"), floor=floor)
        strategy.start(SIZES)
        assert strategy.candidates().tolist() == expected


@every_rule
def test_a_strategy_that_is_started_again_remembers_nothing(make: MakeRule) -> None:
    strategy, rounds = run(make, map(measured, noisy_rounds(3))), noisy_rounds(4)
    strategy.start(SIZES)
    fresh = run(make, [])
    assert strategy.state_dict() == fresh.state_dict()
    for gains in rounds:
        assert strategy.update(measured(gains)) == fresh.update(measured(gains))
    assert strategy.state_dict() == fresh.state_dict()


def test_fewer_than_two_measured_datasets_are_no_evidence() -> None:
    strategy = run(Anchored, map(measured, noisy_rounds(2)))
    before = strategy.state_dict()
    assert strategy.update(measured(np.ones((1, 4)), [3])) == {}
    assert strategy.update(measured(np.ones((0, 4)), [])) == {}
    assert strategy.state_dict() == before


@given(
    logits=st.lists(st.floats(-4, 4), min_size=6, max_size=6).map(np.array),
    values=st.lists(influence, min_size=6, max_size=6).map(np.array),
    probed=st.sets(st.integers(0, 5), min_size=2, max_size=6).map(sorted),
)
def test_the_gradient_is_that_of_the_expected_influence(logits: Vector, values: Vector, probed: list[int]) -> None:
    def expected_influence(at: Vector) -> float:
        return float(softmax(at[probed]) @ values[probed])

    small = 1e-5
    nudges = small * np.eye(6)
    numerical = [(expected_influence(logits + n) - expected_influence(logits - n)) / (2 * small) for n in nudges]
    found = gradient_of(reward(values[probed], probed), logits)
    assert found == pytest.approx(np.array(numerical), abs=1e-8)
    shares = softmax(logits[probed])
    closed = shares * (values[probed] - shares @ values[probed])
    assert found[probed] == pytest.approx(closed, abs=1e-12)


half_believed = st.lists(st.floats(0, 1), min_size=7, max_size=7).map(np.array)


@fewer
@given(values=seven, trust=half_believed, gate=st.floats(0, 1))
def test_the_gradient_takes_of_each_contrast_what_is_believed(values: Vector, trust: Vector, gate: float) -> None:
    assume(np.ptp(values) > 0)
    round_ = reward(values, gate=gate, trust=trust)
    believed, shares = gate * trust * (values - values.mean()), softmax(START)
    assert gradient_of(round_) == pytest.approx(shares * (believed - shares @ believed), abs=1e-12)


def full_and_averaged(values: Vector, start: Vector, size: int) -> tuple[Vector, Vector]:
    """Return the gradient over all datasets, and the mean of those over all subsets of a size."""
    subsets = [list(subset) for subset in combinations(range(len(values)), size)]
    found = [gradient_of(reward(values[subset], subset), start) for subset in subsets]
    return gradient_of(reward(values), start), np.mean(found, axis=0)


@fewer
@given(values=seven, size=st.integers(2, 6))
def test_subsets_have_the_direction_of_the_whole_where_probabilities_are_equal(values: Vector, size: int) -> None:
    assume(np.ptp(values) > 0)
    full, averaged = full_and_averaged(values, UNIFORM.logits(SIZES), size)
    assert cosine(full, averaged) == pytest.approx(1, abs=1e-9)


@fewer
@given(values=seven, size=st.integers(2, 6))
def test_subsets_lead_uphill_where_probabilities_are_those_of_the_sizes(values: Vector, size: int) -> None:
    assume(np.ptp(values) > 0)
    full, averaged = full_and_averaged(values, START, size)
    assert cosine(full, averaged) > 0


@pytest.mark.parametrize("betas", [[0.9, 0.999], [0.0, 0.9]])
def test_adam_is_torchs(betas: list[float]) -> None:
    rule, logits = PolicyGradient(step=0.1, betas=betas), START
    rule.start(START)
    theirs = torch.tensor(START, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.1, betas=(betas[0], betas[1]), eps=1e-12, maximize=True)
    rng = np.random.default_rng(0)
    for _ in range(60):
        values = rng.normal(0.3, 1, 7)
        logits = rule.move(logits, reward(values))
        optimizer.zero_grad()
        (theirs.softmax(0) @ torch.tensor(values)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert logits == pytest.approx(theirs.detach().numpy(), abs=1e-8)
    assert np.abs(logits - START).max() > 0.5


def test_adam_counts_the_rounds_of_each_dataset_for_itself() -> None:
    rule = PolicyGradient()
    often, seldom = reward([0.1, 0.4, -0.2], [0, 1, 2]), reward([0.1, 0.4], [5, 6])
    follow(rule, [often, often, seldom, often])
    assert rule.state_dict()["count"] == [3, 3, 3, 0, 0, 1, 1]
    # A first step is the whole step, however late it comes.
    moved = follow(PolicyGradient(step=0.02), [often] * 9 + [seldom]) - START
    assert np.abs(moved[5:]) == pytest.approx([0.02, 0.02])


@given(values=seven, unit=st.floats(1e-6, 1e6))
def test_anchored_counts_standard_deviations_whatever_the_unit(values: Vector, unit: float) -> None:
    assume(np.ptp(values) > 0)
    moved = follow(Anchored(reach=3.0), [reward(values * unit)]) - START
    assert moved == pytest.approx(3.0 / 1.25 * np.clip((values - values.mean()) / values.std(), -2, 2), abs=1e-9)


def test_a_single_outlier_counts_for_two_standard_deviations_at_most() -> None:
    values = [0.0] * 6 + [1e6]
    assert (follow(Anchored(reach=3.0), [reward(values)]) - START)[6] == pytest.approx(6.0 / 1.25)


@given(
    values=seven, reach=st.floats(0.1, 5), memory=st.floats(0, 0.99), gate=st.floats(0, 1), trust=st.floats(0.01, 1)
)
def test_anchored_is_at_what_does_not_change_up_to_a_quarter_of_a_round_for_the_start(
    values: Vector, reach: float, memory: float, gate: float, trust: float
) -> None:
    assume(np.ptp(values) > 0)
    standardised = np.clip((values - values.mean()) / values.std(), -2, 2)
    for rounds in (1, 5):
        weight = trust * sum(memory ** (trust * age) for age in range(rounds))
        expected = START + reach * gate * standardised * weight / (0.25 + weight)
        found = follow(Anchored(reach=reach, memory=memory), [reward(values, gate=gate, trust=trust)] * rounds)
        assert found == pytest.approx(expected, abs=1e-9)


@fewer
@given(
    rounds=st.lists(st.tuples(seven, half_believed), min_size=1, max_size=6),
    memory=st.floats(0, 0.99),
    gate=st.floats(0, 1),
)
def test_anchored_is_at_the_mean_of_its_rounds_by_trust_and_age(
    rounds: list[tuple[Vector, Vector]], memory: float, gate: float
) -> None:
    assume(all(np.ptp(values) > 0 and trust.any() for values, trust in rounds))
    # The gate of the last round is that of all.
    *before, (values, trust) = rounds
    rewards = [*(reward(values, trust=trust) for values, trust in before), reward(values, gate=gate, trust=trust)]
    found = follow(Anchored(reach=1.5, memory=memory), rewards)
    trusts = np.array([trust for _, trust in rounds])
    later = trusts[::-1].cumsum(axis=0)[::-1] - trusts
    weights = memory**later * trusts
    standardised = np.array([np.clip((values - values.mean()) / values.std(), -2, 2) for values, _ in rounds])
    mean = (weights * standardised).sum(axis=0) / (0.25 + weights.sum(axis=0))
    assert found == pytest.approx(START + 1.5 * gate * mean, abs=1e-9)


@fewer
@given(
    rounds=st.lists(st.tuples(seven, half_believed, st.floats(0, 1)), min_size=1, max_size=10),
    reach=st.floats(0.1, 5),
    memory=st.floats(0, 0.99),
    probed=st.sets(st.integers(0, 6), min_size=2).map(sorted),
)
def test_anchored_never_leaves_its_reach(
    rounds: list[tuple[Vector, Vector, float]], reach: float, memory: float, probed: list[int]
) -> None:
    rewards = [
        one
        for values, trust, gate in rounds
        for one in (reward(values), reward(values[probed], probed, gate=gate, trust=trust[probed]))
    ]
    moved = follow(Anchored(reach=reach, memory=memory), rewards)
    assert np.abs(moved - START).max() <= 2 * reach + 1e-9


def test_anchored_stays_when_rewards_are_no_longer_trusted() -> None:
    strong = [reward([1.0, 0, 0, 0, 0, 0, -1.0])] * 30
    contrary = [-1.0, 0, 0, 0, 0, 0, 1.0]
    away = follow(Anchored(), strong)
    assert np.abs(away - START).max() > 3
    untrusted = [reward(contrary, trust=0)] * 200
    assert follow(Anchored(), [*strong, *untrusted]).tolist() == away.tolist()
    # What is hardly trusted hardly counts beside what was trusted, as long as that is not forgotten.
    doubtful = follow(Anchored(), [*strong, *[reward(contrary, trust=0.01)] * 10])
    assert doubtful == pytest.approx(away, abs=0.25)
    # What is trusted takes its place.
    assert follow(Anchored(), [*strong, *[reward(contrary)] * 100]) == pytest.approx(2 * START - away, abs=0.01)


def test_anchored_comes_back_as_the_gate_closes_and_goes_there_again_as_it_opens() -> None:
    strong = [reward([1.0, 0, 0, 0, 0, 0, -1.0])] * 30
    away = follow(Anchored(), strong) - START
    for gate in (0.0, 0.25, 1.0):
        closing = reward([1.0, 0, 0, 0, 0, 0, -1.0], gate=gate)
        assert follow(Anchored(), [*strong, closing]) - START == pytest.approx(gate * away, abs=1e-3)
        again = follow(Anchored(), [*strong, closing, strong[0]]) - START
        assert again == pytest.approx(away, abs=1e-3)


def test_only_the_gradient_ends_on_a_single_dataset() -> None:
    rewards = [reward([1.0, 0.9, 0.8, 0, 0, 0, 0])] * 2000
    ends = {name: softmax(follow(rule(), rewards, UNIFORM.logits(SIZES))) for name, rule in ONE_NUMBER.items()}
    assert ends["gradient"][0] > 0.99
    assert ends["anchored"][2] > 0.15


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicyGradient(step=0), "step"),
        (lambda: PolicyGradient(step=-1), "step"),
        (lambda: Anchored(reach=math.nan), "reach"),
        (lambda: Anchored(memory=1), "memory"),
    ],
)
def test_impossible_settings_are_refused(make: MakeRule, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()


@pytest.mark.parametrize("max_epochs", [0, -1, math.nan])
def test_a_limit_that_lets_no_row_be_drawn_is_refused(max_epochs: float) -> None:
    for strategy in (InfDDS, Static):
        with pytest.raises(RecipeError, match="max_epochs"):
            strategy(max_epochs=max_epochs)
