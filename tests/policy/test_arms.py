"""Arms are named after their dataset and start with their part of its weight.

- Weights of the arms of a dataset sum to the dataset's weight, in proportion to their rows, for every strategy.
- Weights that name the arms, as an earlier stage finds them, are used as they are.
- The number of clusters follows from the rows.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM, Arms, Initial, Temperature, Weights
from mixfluence.policy.arms import siblings, totals
from mixfluence.strategies import ODM, Aioli, DoGE, InfDDS, MultiDDS, Static, Strategy

SIZES = {"a/0": 100, "a/1": 300, "b/0": 50, "c/d/0": 10, "c/d/1": 30}


@pytest.mark.parametrize("kind", [Static, InfDDS, MultiDDS, DoGE, ODM, Aioli])
@pytest.mark.parametrize("init", [UNIFORM, Temperature(2.0), Weights({"a": 1.0, "b": 3.0, "c/d": 0.0})])
def test_arms_start_with_their_part_of_their_datasets_weight(kind: type[Strategy], init: Initial) -> None:
    whole, cut = kind(init=init), kind(init=init, arms=Arms())
    whole.start(totals(SIZES))
    cut.start(SIZES)
    weights = dict(zip(SIZES, cut.weights().tolist(), strict=True))
    assert list(totals(weights).values()) == pytest.approx(whole.weights().tolist())
    assert weights["a/1"] == pytest.approx(3 * weights["a/0"])
    assert weights["c/d/1"] == pytest.approx(3 * weights["c/d/0"])


def test_weights_of_arms_are_used_as_they_are() -> None:
    found = {"a/0": 0.4, "a/1": 0.1, "b/0": 0.2, "c/d/0": 0.0, "c/d/1": 0.3}
    strategy = Static(init=Weights(found), arms=Arms())
    strategy.start(SIZES)
    assert strategy.weights().tolist() == pytest.approx(list(found.values()))


def test_arms_need_clusters() -> None:
    with pytest.raises(RecipeError, match="'whole'"):
        InfDDS(arms=Arms()).start({"a/0": 3, "whole": 4})


def test_a_bandit_needs_batches_of_one_cluster() -> None:
    with pytest.raises(RecipeError, match=r"arms\.batches"):
        ODM(arms=Arms(batches="dataset"))


def test_a_bandit_expects_of_a_new_cluster_what_its_siblings_gave() -> None:
    def probability(cluster: int, arms: Arms | None) -> float:
        odm = ODM(warmup_batches=0, arms=arms)
        odm.start(SIZES)
        for dataset, loss in ((0, 9.0), (2, 1.0), (3, 1.0)) * 20:
            odm.observe(dataset, loss)
        return float(odm.weights()[cluster])

    assert probability(1, Arms()) > probability(4, Arms())
    assert probability(1, None) == probability(4, None)


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 5_000), min_size=1), st.integers(2, 12))
def test_planned_arms_have_all_rows(train: dict[str, int], clusters: int) -> None:
    arms = Arms(clusters=clusters, rows_per_cluster=100)
    sizes = arms.expected_sizes(train)
    assert totals(sizes) == train
    counts = dict(zip(train, map(arms.number, train.values()), strict=True))
    assert len(sizes) == sum(counts.values())
    for name, rows in train.items():
        assert counts[name] == 1 or rows / counts[name] >= 100
    assert len(set(siblings(sizes).tolist())) == len(train)
