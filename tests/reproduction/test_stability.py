"""Measures of studies, on examples worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.stability import disagreement, distance, wandering
from reproduction.views import undominated, z_scores

mixtures = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(
    lambda w: {n: v / sum(w) for n, v in zip("abc", w, strict=True)}
)


def test_z_scores_by_hand() -> None:
    # Mean 4, population variance (4 + 0 + 4) / 3 = 8/3.
    assert z_scores([2.0, 4.0, 6.0]) == pytest.approx([-2 / (8 / 3) ** 0.5, 0.0, 2 / (8 / 3) ** 0.5])
    assert z_scores([3.0, 3.0]) == [0.0, 0.0]


def test_distance_by_hand() -> None:
    assert distance({"a": 1.0}, {"b": 1.0}) == 1.0
    assert distance({"a": 0.5, "b": 0.5}, {"a": 0.75, "b": 0.25}) == 0.25


def test_wandering_by_hand() -> None:
    half, more, most = {"a": 0.5, "b": 0.5}, {"a": 0.75, "b": 0.25}, {"a": 1.0, "b": 0.0}
    assert wandering([half, more, most]) == 0.0
    # There and back: a path of 0.25 + 0.5 + 0.25, a displacement of 0.
    assert wandering([half, more, {"a": 0.25, "b": 0.75}, half]) == 1.0
    assert wandering([half]) == 0.0


@given(st.lists(mixtures, min_size=1, max_size=5))
def test_a_detour_never_makes_a_run_more_stable(path: list[dict[str, float]]) -> None:
    assert wandering([*path, path[-1]]) == pytest.approx(wandering(path))
    assert wandering([*path[:-1], {"a": 1.0}, path[-1]]) >= wandering(path) - 1e-9


def test_disagreement_by_hand() -> None:
    first, second, third = {"a": 1.0}, {"a": 0.5, "b": 0.5}, {"b": 1.0}
    # Pairs: 0.5, 1 and 0.5.
    assert disagreement([first, second, third]) == pytest.approx(2 / 3)
    assert disagreement([first, first]) == 0.0
    assert disagreement([first]) is None


def test_undominated_by_hand() -> None:
    # The second costs as much as the first and is worse; the third costs more and is better.
    assert undominated([(1, 50), (1, 40), (3, 60), (4, 60)]) == [True, False, True, False]
    assert undominated([(1, 50), (1, 50)]) == [True, True]
