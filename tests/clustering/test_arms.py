"""Datasets cut into arms by their queries.

- Every row is in one arm of its own dataset; arms follow the topics of queries, whatever the passages are.
- A small dataset is one arm, the rows as they were; clusters that do not fill a batch are merged.
- Arms are named by typical terms, and what is stored gives the same arms without clustering.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixfluence.clustering import Partition
from mixfluence.clustering.arms import cut_into_arms, read_arms, typical_terms, write_arms
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row
from mixfluence.errors import DataError
from mixfluence.policy import Arms
from tests.clustering.topics import rows_on, topic_encoder, topics_of
from tests.conftest import row_set

ENCODER = topic_encoder()
POOL = Mixture({"x": rows_on("ab" * 20 + "c" * 20), "y": rows_on("d" * 12), "z": rows_on("cd" * 20)})


def cut(pool: Mixture = POOL, least_rows: int = 4, **options: int) -> Partition:
    arms = Arms(**{"clusters": 3, "rows_per_cluster": 20, **options})
    return cut_into_arms(pool, ENCODER, arms, least_rows=least_rows)


def test_arms_follow_the_topics_of_their_dataset() -> None:
    found = cut()
    by_dataset = {
        name: sorted(
            "".join(set(topics_of(found.mixture[arm]))) for arm in found.mixture if arm.startswith(f"{name}/")
        )
        for name in POOL
    }
    assert by_dataset == {"x": ["a", "b", "c"], "y": ["d"], "z": ["c", "d"]}
    assert sum(found.mixture.sizes.values()) == sum(POOL.sizes.values())
    assert found.sources == {arm: arm[0] for arm in found.mixture}
    assert found.shares(found.mixture.sizes) == pytest.approx(POOL.sizes)


def test_queries_alone_decide() -> None:
    rows = row_set(*(Row(f"{'ab'[i % 2]}{i % 10}", f"{'cd'[i // 30]}{i % 7}") for i in range(60)))
    found = cut(Mixture({"x": rows}), clusters=2)
    assert sorted("".join(set(topics_of(own))) for own in found.mixture.values()) == ["a", "b"]


def test_a_small_dataset_is_not_copied() -> None:
    found = cut()
    assert found.mixture["y/0"] is POOL["y"]


def test_clusters_smaller_than_a_batch_are_merged() -> None:
    found = cut(least_rows=30)
    assert all(len(rows) >= 30 for arm, rows in found.mixture.items() if not arm.startswith("y/"))
    assert sum(found.mixture.sizes.values()) == sum(POOL.sizes.values())


def test_typical_terms_tell_clusters_apart() -> None:
    queries = ["what is the mask rule", "what is a mask", "what is the vaccine", "is the vaccine safe"]
    found = typical_terms(queries, np.array([0, 0, 1, 1], np.int16), 2)
    assert [terms[0] for terms in found] == ["mask", "vaccine"]
    assert typical_terms(["1 2", "3"], np.array([0, 1], np.int16), 2) == [(), ()]


def test_stored_arms_are_the_same_without_clustering(tmp_path: Path) -> None:
    found = cut()
    assert found.numbers is not None
    write_arms(tmp_path / "arms.npy", found.numbers)
    again = read_arms(POOL, tmp_path / "arms.npy")
    assert again.mixture.fingerprints == found.mixture.fingerprints
    assert [rows.terms for rows in again.mixture.values()] == [rows.terms for rows in found.mixture.values()]
    assert any(rows.terms for rows in found.mixture.values())
    with pytest.raises(DataError, match=r"arms\.npy"):
        read_arms(Mixture({"x": POOL["x"]}), tmp_path / "arms.npy")
