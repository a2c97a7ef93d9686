"""How much of a round is believed.

- Contrasts are what was measured, without their mean. Errors of zero leave full trust; errors as large as the spread
  leave none; in between, the larger the error of a dataset the less it is trusted.
- The gate is half open before there is anything to compare. Rounds that agree open it, rounds that say the contrary
  close it, and over the whole run it is what chance would give in standard deviations, by halves. Only datasets that
  both rounds measured are compared.
- Rounds of noise leave the weights near their start, from the third round on; without trust and gate they wander.
- A signal that lasts is followed, and stays followed when later rounds tell nothing.
- What is saved as JSON continues exactly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mixfluence.influence import Influences
from mixfluence.policy import UNIFORM, Evidence, Reward, Vector
from mixfluence.strategies import InfDDS

pytestmark = pytest.mark.slow

M = 13
ALL = np.arange(M)
NO_ERROR = np.zeros(M)
EQUAL = np.full(M, 1 / M)
SIZES = {f"d{number}": 100 * 2**number for number in range(M)}

values_of_all = st.lists(st.integers(-1000, 1000).map(lambda n: n / 1000), min_size=M, max_size=M).map(np.array)
errors_of_all = st.lists(st.floats(0, 1), min_size=M, max_size=M).map(np.array)


def noise(rounds: int, seed: int = 0) -> Vector:
    return np.random.default_rng(seed).normal(size=(rounds, M))


def judged(evidence: Evidence, rounds: Vector) -> list[Reward]:
    """Return the rewards of rounds that are known without error."""
    return [evidence.judge(ALL, values, NO_ERROR) for values in rounds]


def gates(evidence: Evidence, rounds: Vector) -> list[float]:
    return [reward.gate for reward in judged(evidence, rounds)]


@given(values=values_of_all, of_spread=st.floats(1, 10))
def test_errors_as_large_as_the_spread_leave_no_trust(values: Vector, of_spread: float) -> None:
    errors = np.full(M, values.std() * of_spread * (1 + 1e-9))
    reward = Evidence().judge(ALL, values, errors)
    assert reward.trust.tolist() == [0.0] * M
    assert reward.contrasts == pytest.approx(values - values.mean(), abs=1e-12)
    assert reward.spread == pytest.approx(values.std())


@given(values=values_of_all)
def test_errors_of_zero_leave_full_trust(values: Vector) -> None:
    assume(np.ptp(values) > 0)
    reward = Evidence().judge(ALL, values, NO_ERROR)
    assert reward.trust.tolist() == [1.0] * M
    assert reward.contrasts == pytest.approx(values - values.mean(), abs=1e-12)


@given(values=values_of_all, errors=errors_of_all)
def test_the_larger_its_error_the_less_a_contrast_is_trusted(values: Vector, errors: Vector) -> None:
    assume((errors**2).mean() < 0.9 * values.var() and np.ptp(values) > 0)
    trust = Evidence().judge(ALL, values, errors).trust[np.argsort(errors)]
    assert (trust > 0).all()
    assert (trust <= 1).all()
    assert (np.diff(trust) <= 1e-12).all()


def test_trust_is_the_share_of_the_variance_that_is_signal() -> None:
    # Of a variance of 1, errors explain a quarter on average: 0.75 is signal.
    values = np.array([1.0, -1.0, 1.0, -1.0])
    errors = np.sqrt([0.0, 0.25, 0.5, 0.25])
    reward = Evidence().judge(np.arange(4), values, errors)
    assert reward.trust == pytest.approx([1.0, 0.75 / 1.0, 0.75 / 1.25, 0.75 / 1.0])
    assert reward.contrasts == pytest.approx(values)
    assert Evidence(shrink=False).judge(np.arange(4), values, errors).trust.tolist() == [1.0] * 4


@given(values=values_of_all)
def test_standardised_contrasts_have_a_spread_of_one_and_no_more_than_two_of_it(values: Vector) -> None:
    assume(np.ptp(values) > 0)
    standardised = Evidence().judge(ALL, values, np.ones(M)).standardised()
    assert standardised == pytest.approx(np.clip((values - values.mean()) / values.std(), -2, 2), abs=1e-9)


def test_values_equal_up_to_rounding_are_no_evidence_and_are_not_remembered() -> None:
    evidence = Evidence()
    gate = judged(evidence, np.tile(np.arange(3.0), (2, 1)).repeat(5, axis=1)[:, :M])[-1].gate
    before = evidence.state_dict()
    for equal in (np.full(M, 0.7), np.zeros(M), np.where(ALL % 2, 0.1 + 0.2, 0.3)):
        reward = evidence.judge(ALL, equal, NO_ERROR)
        assert reward.spread == 0
        assert reward.standardised().tolist() == [0.0] * M
        assert reward.trust.tolist() == [0.0] * M
        assert reward.gate == gate
    assert evidence.state_dict() == before


def test_the_gate_is_half_open_before_there_is_anything_to_compare() -> None:
    evidence = Evidence()
    assert evidence.judge(ALL, np.ones(M), NO_ERROR).gate == 0.5
    assert gates(evidence, noise(1)) == [0.5]


@pytest.mark.parametrize(
    ("datasets", "expected"),
    [
        (13, [0.5, 1, 1, 1]),
        (3, [0.5, (2**0.5 + 2) / 4, 1, 1]),
        (2, [0.5, 0.5 * 2**0.5, 0.5 * 3**0.5, 1]),
    ],
)
def test_rounds_that_agree_open_the_gate_the_faster_the_more_datasets_there_are(
    datasets: int, expected: list[float]
) -> None:
    evidence, probed = Evidence(), np.arange(datasets)
    signal = probed.astype(float)
    found = [evidence.judge(probed, scale * signal, np.zeros(datasets)).gate for scale in (1, 3, 0.5, 2)]
    assert found == pytest.approx(expected)


def test_rounds_that_say_the_contrary_close_the_gate() -> None:
    found = gates(Evidence(), np.outer([1, -1, 1, -1], noise(1)[0]))
    assert found == [0.5, 0, 0, 0]


def test_a_gate_once_open_stays_open_through_noise_but_not_through_contradiction() -> None:
    evidence = Evidence()
    agreeing = np.outer(np.ones(10), noise(1)[0])
    judged(evidence, agreeing)
    saved = evidence.state_dict()
    assert gates(evidence, noise(100, seed=1))[-100:] == [1.0] * 100
    evidence.load_state_dict(saved)
    # Nine comparisons agreed; after ten that do not, nothing is left of them and of the prior.
    contrary = gates(evidence, np.outer([-1, 1] * 6, noise(1)[0]))
    assert contrary[0] == 1
    assert contrary == sorted(contrary, reverse=True)
    assert contrary[9:] == pytest.approx([0] * 3, abs=1e-9)


def test_under_noise_the_gate_is_what_chance_gives_in_every_round() -> None:
    found = np.array([gates(Evidence(), noise(30, seed)) for seed in range(300)])
    # A normal variable whose mean, the prior, fades; halved and clipped. Without the prior it is closed in half of all
    # runs and 0.2 on average.
    compared = np.arange(30)
    normal = np.random.default_rng(0).normal(size=(20_000, 1))
    expected = np.clip((1 + np.sqrt(compared) * normal) / np.sqrt(1 + compared) / 2, 0, 1)
    assert found.mean(axis=0) == pytest.approx(expected.mean(axis=0), abs=0.05)
    assert (found == 0).mean(axis=0) == pytest.approx((expected == 0).mean(axis=0), abs=0.1)
    assert found[:, -1].mean() < 0.3


def test_the_gate_adds_up_correlations_in_units_of_what_chance_gives() -> None:
    evidence = Evidence()
    rounds = noise(5) + np.linspace(0, 1, M)
    correlations = [np.corrcoef(before, after)[0, 1] for before, after in pairwise(rounds)]
    # The prior counts as a comparison that is one standard deviation above chance.
    prior = 12**0.5
    sums = (prior + np.cumsum(12 * np.array(correlations))) / np.sqrt(12 * np.arange(2, 6))
    assert ((sums > 0) & (sums < 2)).any()
    assert gates(evidence, rounds)[1:] == pytest.approx(np.clip(sums / 2, 0, 1))
    # Rounds of fewer datasets weigh less.
    few = np.array([2, 5, 7])
    values = np.array([0.3, -0.1, 0.4])
    correlation = np.corrcoef(rounds[-1][few], values)[0, 1]
    total = (prior + 12 * sum(correlations) + 2 * correlation) / np.sqrt(5 * 12 + 2)
    assert evidence.judge(few, values, np.zeros(3)).gate == pytest.approx(np.clip(total / 2, 0, 1))


def test_errors_do_not_touch_the_gate_nor_the_gate_trust() -> None:
    exact, rough = Evidence(), Evidence()
    for values in noise(5) + np.linspace(0, 2, M):
        one, other = exact.judge(ALL, values, NO_ERROR), rough.judge(ALL, values, np.full(M, 0.5))
        assert one.gate == other.gate
        noiseless = values.var() - 0.25
        assert other.trust == pytest.approx(np.full(M, noiseless / (noiseless + 0.25)))


def test_without_the_gate_agreement_is_known_but_not_used() -> None:
    gated, free = Evidence(), Evidence(gate=False)
    rounds = noise(5)
    assert gates(free, rounds) == [1.0] * 5
    assert min(gates(gated, rounds)) < 0.5
    assert free.state_dict() == gated.state_dict()
    assert free.judge(ALL, np.ones(M), NO_ERROR).gate == 1


def test_only_datasets_that_were_measured_before_are_compared() -> None:
    evidence = Evidence()
    evidence.judge(np.array([0, 1, 2]), np.array([1.0, 2.0, 4.0]), np.zeros(3))
    reward = evidence.judge(np.array([3, 4, 5]), np.array([9.0, 1.0, 5.0]), np.zeros(3))
    assert reward.gate == 0.5, "no dataset in common"
    reward = evidence.judge(np.array([2, 6]), np.array([1.0, 2.0]), np.zeros(2))
    assert reward.gate == 0.5, "one dataset in common has no correlation"
    # Each with its last value, however long ago: 0, 1 of the first round and 5 of the second.
    reward = evidence.judge(np.array([0, 1, 5]), np.array([1.0, 1.1, 2.5]), np.zeros(3))
    first, second = np.array([1.0, 2.0, 4.0]), np.array([9.0, 1.0, 5.0])
    before = [*((first - first.mean()) / first.std())[:2], ((second - second.mean()) / second.std())[2]]
    correlation = np.corrcoef(before, [1.0, 1.1, 2.5])[0, 1]
    assert reward.gate == pytest.approx((2**0.5 + 2 * correlation) / np.sqrt(2 + 2) / 2)
    assert 0 < reward.gate < 1


def test_evidence_read_back_from_json_continues_exactly() -> None:
    evidence, resumed = Evidence(), Evidence()
    rounds = noise(8) + np.linspace(0, 1, M)
    judged(evidence, rounds[:4])
    resumed.load_state_dict(json.loads(json.dumps(evidence.state_dict(), allow_nan=False)))
    for one, other in zip(judged(evidence, rounds[4:]), judged(resumed, rounds[4:]), strict=True):
        assert one.gate == other.gate > 0
        assert one.contrasts.tolist() == other.contrasts.tolist()
        assert one.trust.tolist() == other.trust.tolist()
    assert resumed.state_dict() == evidence.state_dict()


def test_evidence_before_any_round_is_saved_too() -> None:
    evidence, resumed = Evidence(), Evidence()
    judged(resumed, noise(2))
    resumed.load_state_dict(json.loads(json.dumps(evidence.state_dict(), allow_nan=False)))
    assert resumed.state_dict() == evidence.state_dict()
    assert gates(resumed, noise(1)) == [0.5]


@dataclass
class World:
    """Rounds in which each dataset is better than the one before by `signal`.

    Attributes:
        seed: Decides the noise.
        signal: The difference between neighbours.
        batches: Noise from the batches of a probe, which no error over queries shows.
        queries: Noise of each dev query.
    """

    seed: int
    signal: float = 0.0
    batches: float = 0.0
    queries: float = 0.0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def lead(self, strategy: InfDDS, rounds: int) -> tuple[Vector, list[float]]:
        """Return the weights after each of some rounds, and the gates."""
        weights, found = [], []
        for _ in range(rounds):
            noise_ = self._rng.normal(0, self.batches, (M, 1)) + self._rng.normal(0, self.queries, (M, 32))
            gains = self.signal * ALL[:, None] + noise_
            said = strategy.update(Influences(ALL, np.array([], np.int64), ["dev"], np.ones(1), [gains]))
            weights.append(strategy.weights())
            found.append(said["gate"])
        return np.array(weights), found


def started(*, careful: bool = True) -> InfDDS:
    strategy = InfDDS(init=UNIFORM, shrink=careful, gate=careful)
    strategy.start(SIZES)
    return strategy


def furthest(weights: Vector, at: Vector) -> Vector:
    """Return the largest difference in each round."""
    return np.asarray(np.abs(weights - at).max(axis=-1))


@pytest.mark.parametrize(("batches", "queries"), [(1.0, 0.1), (0.0, 1.0)], ids=["batches", "queries"])
def test_rounds_of_noise_leave_the_weights_near_their_start_from_the_sixth_on(batches: float, queries: float) -> None:
    def distances(*, careful: bool) -> Vector:
        worlds = [World(seed, batches=batches, queries=queries) for seed in range(40)]
        return np.array([furthest(world.lead(started(careful=careful), 50)[0], EQUAL)[2:] for world in worlds])

    careful, careless = distances(careful=True), distances(careful=False)
    # Of 1/13 = 0.077, in every round from the sixth on: before, the prior of the gate still counts.
    settled = careful[:, 3:]
    assert np.median(settled, axis=0).max() < 0.03
    assert settled.mean(axis=0).max() < 0.08
    assert (settled.mean(axis=0) < 0.5 * careless[:, 3:].mean(axis=0)).all()
    assert np.median(careless, axis=0).min() > 0.05
    assert careless.mean(axis=0).max() > 0.2
    # From the tenth on.
    assert careful[:, 8:].mean() < 0.03
    assert careful[:, 8:].mean() < careless[:, 8:].mean() / 3


@pytest.mark.parametrize("seed", range(3))
def test_a_signal_that_lasts_is_followed(seed: int) -> None:
    weights, found = World(seed, signal=0.3, batches=0.3, queries=1.0).lead(started(), 100)
    assert found == [0.5] + [1.0] * 99
    assert furthest(weights, EQUAL)[1:].min() > 0.2
    assert weights[-1, -1] > 0.3
    assert weights[-1, 0] < 0.002


@pytest.mark.parametrize("seed", range(6))
def test_what_a_signal_has_taught_stays_through_ten_rounds_of_noisy_queries(seed: int) -> None:
    strategy = started()
    learned = World(seed, signal=0.3, batches=0.3, queries=1.0).lead(strategy, 30)[0][-1]
    assert furthest(learned, EQUAL) > 0.25
    # Hardly anything is left of the signal, and yet some of the rounds seem to tell a bit.
    weights, found = World(seed, signal=0.3, queries=60.0).lead(strategy, 10)
    assert found == [1.0] * 10
    assert furthest(weights, learned).max() < 0.17
    assert furthest(weights, EQUAL).min() > 0.15


def test_what_a_signal_has_taught_stays_exactly_while_rounds_show_no_more_than_their_errors() -> None:
    strategy = started()
    learned = World(0, signal=0.3, batches=0.3, queries=1.0).lead(strategy, 3)[0][-1]
    assert furthest(learned, EQUAL) > 0.2
    contrary = np.linspace(1, -1, M)[:, None]
    queries = 30.0 * np.where((ALL[:, None] + np.arange(32)) % 2, 1, -1)
    unclear = Influences(ALL, np.array([], np.int64), ["dev"], np.ones(1), [contrary + queries])
    for _ in range(100):
        said = strategy.update(unclear)
        assert said["trust"] == [0.0] * M
        assert strategy.weights().tolist() == learned.tolist()
