"""Clusters of a dataset share evidence.

- A measured value is shrunk towards its dataset's mean, the more the larger its error is; exact ones stay.
- A cluster that was not measured has the mean of its siblings, with a larger error than any of them.
- Estimates are nearer to the truth than the measurements, and errors say how near.
- Evidence rewards a cluster that was never probed with its siblings, and does not count it as agreement.
"""

from __future__ import annotations

import numpy as np
import pytest

from mixfluence.policy import Evidence, Fair, softmax
from mixfluence.policy.evidence import share_evidence

GROUPS = np.array([0, 0, 0, 1, 1, 2])
ALL = np.arange(6)


def test_exact_values_are_not_changed() -> None:
    values = np.array([1.0, 3.0, 2.0, -1.0, -4.0, 0.5])
    arms, found, errors = share_evidence(ALL, values, np.zeros(6), GROUPS)
    assert arms.tolist() == ALL.tolist()
    assert found.tolist() == pytest.approx(values.tolist())
    assert errors.tolist() == [0.0] * 6


def test_differences_that_errors_explain_vanish_within_a_dataset() -> None:
    values = np.array([1.0, 1.1, 0.9, -2.0, -2.1, 0.5])
    _, found, errors = share_evidence(ALL, values, np.full(6, 1.0), GROUPS)
    assert found.tolist() == pytest.approx([1.0] * 3 + [-2.05] * 2 + [0.5])
    assert errors.tolist() == pytest.approx([1 / 3**0.5] * 3 + [1 / 2**0.5] * 2 + [1.0])


def test_the_noisier_value_moves_further() -> None:
    values, errors = np.array([2.0, -2.0, 0.0, 5.0, 5.0, 0.0]), np.array([0.1, 1.5, 0.1, 0.1, 0.1, 0.1])
    _, found, _ = share_evidence(ALL, values, errors, GROUPS)
    assert 0 < values[0] - found[0] < 0.2 < found[1] - values[1]


def test_a_cluster_that_was_not_measured_has_the_mean_of_its_siblings() -> None:
    probed = np.array([0, 2, 3])
    arms, found, errors = share_evidence(probed, np.array([2.0, 1.0, -4.0]), np.full(3, 0.1), GROUPS)
    # Nothing is known of the third dataset.
    assert arms.tolist() == [0, 1, 2, 3, 4]
    assert found[1] == pytest.approx(1.5)
    assert found[4] == pytest.approx(-4.0)
    assert errors[1] > 3 * errors[0]
    assert errors[4] > 3 * errors[3]


def test_columns_are_estimated_one_by_one() -> None:
    rng = np.random.default_rng(0)
    probed, values, errors = np.array([0, 1, 3, 5]), rng.normal(size=(4, 3)), rng.uniform(0.1, 1, (4, 3))
    arms, found, uncertain = share_evidence(probed, values, errors, GROUPS)
    for target in range(3):
        alone = share_evidence(probed, values[:, target], errors[:, target], GROUPS)
        assert alone[0].tolist() == arms.tolist()
        assert alone[1].tolist() == pytest.approx(found[:, target].tolist())
        assert alone[2].tolist() == pytest.approx(uncertain[:, target].tolist())


def test_estimates_are_nearer_to_the_truth_and_know_how_near() -> None:
    rng, groups = np.random.default_rng(1), np.repeat(np.arange(12), 6)
    squares: dict[str, list[float]] = {"measured": [], "estimated": [], "expected": [], "unmeasured": [], "their": []}
    for _ in range(200):
        truth = rng.normal(0, 1.0, 12)[groups] + rng.normal(0, 0.5, 72)
        errors = rng.uniform(0.5, 1.5, 72)
        values = truth + rng.normal(0, errors)
        probed = np.sort(rng.choice(72, 40, replace=False))
        arms, found, uncertain = share_evidence(probed, values[probed], errors[probed], groups)
        own = np.isin(arms, probed)
        squares["measured"].append(float(np.mean((values - truth)[probed] ** 2)))
        squares["estimated"].append(float(np.mean((found - truth[arms])[own] ** 2)))
        squares["expected"].append(float(np.mean(uncertain[own] ** 2)))
        squares["unmeasured"].append(float(np.mean((found - truth[arms])[~own] ** 2)))
        squares["their"].append(float(np.mean(uncertain[~own] ** 2)))
    means = {name: float(np.mean(values)) for name, values in squares.items()}
    assert means["estimated"] < 0.5 * means["measured"]
    assert means["estimated"] == pytest.approx(means["expected"], rel=0.15)
    assert means["unmeasured"] == pytest.approx(means["their"], rel=0.15)


def rounds(evidence: Evidence, probed: np.ndarray, values: np.ndarray, count: int = 4) -> np.ndarray:
    """Return the mixture of the rule fair after equal rounds."""
    rule, logits = Fair(), np.zeros(6)
    rule.start(logits)
    for _ in range(count):
        logits = rule.move(logits, evidence.judge(probed, values[:, None], np.full((len(probed), 1), 0.05)))
    return softmax(logits)


def test_a_cluster_never_probed_moves_with_its_siblings() -> None:
    probed, values = np.array([0, 1, 3, 4, 5]), np.array([1.0, 0.9, -1.0, -0.9, -0.5])
    shared = rounds(Evidence(groups=GROUPS), probed, values)
    alone = rounds(Evidence(), probed, values)
    # It starts at a sixth. Alone it loses to the two that help; with them it follows.
    assert alone[2] < 1 / 6 < shared[1] < shared[2] < shared[0]
    assert shared[2] > 10 * shared[3:].max()


def test_siblings_that_were_not_measured_do_not_open_the_gate() -> None:
    probed, values, errors = np.array([0, 3, 5]), np.array([1.0, -1.0, 0.2]), np.full(3, 0.1)
    with_siblings, without = Evidence(groups=GROUPS), Evidence()
    for evidence in (with_siblings, without):
        for _ in range(3):
            evidence.judge(probed, values, errors)
    assert with_siblings.state_dict() == without.state_dict()


def test_without_shrinking_nothing_is_shared() -> None:
    reward = Evidence(shrink=False, groups=GROUPS).judge(np.array([0, 3]), np.array([1.0, -1.0]), np.ones(2))
    assert reward.probed.tolist() == [0, 3]
    assert reward.contrasts.tolist() == [1.0, -1.0]
