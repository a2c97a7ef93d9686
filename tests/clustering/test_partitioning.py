"""Clusters of a pool, weighted by dev rows.

- Weights are the histogram of dev rows over clusters, smoothed by Dirichlet counts, averaged over targets.
- Every row is in one cluster, weights and shares sum to 1, and every cluster fills a batch unless it is the only one.
- Clusters per dataset have rows of one dataset; a dev row falls into the nearest cluster of all datasets.
- A second call neither encodes nor clusters; fingerprints cover the rows, and texts are not copied.
- Clusters use the token ids of their datasets, for any clustering.
- Bad options are refused by name.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from mixfluence.clustering import Partition, partition
from mixfluence.data.cache import cache_root
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row, RowSet, convert_once
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.errors import DataError, RecipeError
from mixfluence.policy.initial import Weights
from mixfluence.runs import read_trace
from mixfluence.strategies import CRISP, Static
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureTrainer
from tests.clustering.topics import VOCABULARY, rows_on, topic_encoder, topics_of
from tests.conftest import row_set
from tests.test_embedding import count_texts
from tests.training.runs import arguments

pytestmark = pytest.mark.slow

ENCODER = topic_encoder()
# 20 rows on a; 16 on b, of which a quarter is in x.
POOL = Mixture({"x": rows_on("aabaaa" * 4), "y": rows_on("b" * 12)})


def cut(
    targets: dict[str, str], pool: Mixture = POOL, *, least_rows: int = 4, seed: int = 0, **options: Any
) -> Partition:
    dev = {name: rows_on(topics, seed=1) for name, topics in targets.items()}
    return partition(pool, dev, ENCODER, CRISP(**{"branching": 2, **options}), least_rows=least_rows, seed=seed)


def by_topic(found: Partition) -> dict[str, float]:
    """Return the weight of each cluster under the topics it holds."""
    return {"".join(sorted(set(topics_of(found.mixture[name])))): weight for name, weight in found.weights.items()}


def test_dev_rows_of_one_topic_leave_only_its_cluster() -> None:
    found = cut({"target": "a" * 8})
    assert by_topic(found) == {"a": 1.0}
    assert list(found.mixture) == list(found.weights)
    assert found.shares(found.weights) == {"x": 1.0, "y": 0.0}
    assert sorted(found.rows.values(), key=len) == [{"x": 20}, {"x": 4, "y": 12}]


def test_smoothing_adds_rows_spread_like_the_training_rows() -> None:
    found = cut({"target": "a" * 8}, smoothing=3.0)
    rare = 3 * 16 / 36 / 11
    assert by_topic(found) == pytest.approx({"a": (8 + 3 * 20 / 36) / 11, "b": rare})
    assert found.shares(found.weights) == pytest.approx({"x": 1 - 0.75 * rare, "y": 0.75 * rare})


def test_every_target_counts_alike() -> None:
    found = cut({"large": "a" * 6, "small": "abbb"})
    assert by_topic(found) == pytest.approx({"a": (1 + 1 / 4) / 2, "b": 3 / 4 / 2})
    smooth = cut({"large": "a" * 6, "small": "abbb"}, smoothing=2.0)
    assert by_topic(smooth)["b"] == pytest.approx((2 * 16 / 36 / 8 + (3 + 2 * 16 / 36) / 6) / 2)


@pytest.mark.parametrize(("texts", "dataset"), [("query", "x"), ("passage", "y")])
def test_what_stands_for_a_row_decides_its_cluster(texts: Literal["query", "passage"], dataset: str) -> None:
    def rows(asked: str, answered: str) -> RowSet:
        return row_set(*(Row(f"{asked}{number % 9}", f"{answered}{number % 7}") for number in range(20)))

    pool = Mixture({"x": rows("a", "b"), "y": rows("c", "d")})
    found = partition(pool, {"target": rows("a", "d")}, ENCODER, CRISP(texts=texts, branching=2), least_rows=4)
    assert found.shares(found.weights)[dataset] == 1.0


@pytest.mark.slow
@settings(max_examples=20)
@given(
    pool=st.lists(st.text("abcd", min_size=1, max_size=60), min_size=1, max_size=3),
    dev=st.lists(st.text("abcd", min_size=1, max_size=9), min_size=1, max_size=2),
    levels=st.integers(1, 3),
    least_rows=st.integers(1, 20),
    smoothing=st.sampled_from([0.0, 1.0]),
    per=st.sampled_from(["pool", "dataset"]),
)
def test_no_row_and_no_mass_is_lost(pool: list[str], dev: list[str], **options: Any) -> None:
    mixture = Mixture({f"d{number}": rows_on(topics) for number, topics in enumerate(pool)})
    found = cut({f"t{number}": topics for number, topics in enumerate(dev)}, mixture, **options)
    assert sum(found.weights.values()) == pytest.approx(1)
    assert min(found.weights.values()) > 0
    assert sum(found.shares(found.weights).values()) == pytest.approx(1)
    assert list(found.shares({})) == list(mixture)
    for name, size in mixture.sizes.items():
        assert sum(rows.get(name, 0) for rows in found.rows.values()) == size
    of_dataset = options["per"] == "dataset"
    for cluster, rows in found.rows.items():
        scope = cluster.rsplit("/", 1)[0]
        alone = [name.rsplit("/", 1)[0] for name in found.rows].count(scope) == 1
        assert sum(rows.values()) >= options["least_rows"] or alone
        assert rows.keys() == {scope} if of_dataset else scope == "pool"
    assert found.mixture.sizes == {name: sum(found.rows[name].values()) for name in found.weights}
    if options["smoothing"]:
        drawn = Counter(row["anchor"] + row["positive"] for rows in found.mixture.values() for row in rows.rows)
        assert drawn == Counter(row["anchor"] + row["positive"] for rows in mixture.values() for row in rows.rows)


@pytest.mark.parametrize("levels", [1, 3])
def test_dev_rows_like_the_pool_give_proportional_shares(levels: int) -> None:
    pool = Mixture({"x": rows_on("abcd" * 15), "y": rows_on("bbd" * 13)})
    both = RowSet(Dataset.from_list([*pool["x"].rows, *pool["y"].rows]), "both")
    found = partition(pool, {"target": both}, ENCODER, CRISP(levels=levels, branching=3), least_rows=5)
    assert found.shares(found.weights) == pytest.approx({"x": 60 / 99, "y": 39 / 99})
    assert found.weights == pytest.approx({name: size / 99 for name, size in found.mixture.sizes.items()})
    assert len(found.weights) > 2


def test_clusters_per_dataset_never_mix_and_compete_for_dev_rows() -> None:
    pool = Mixture({"x": rows_on("abba" * 10), "y/z": rows_on("cddc" * 10)})
    found = cut({"target": "aacaad"}, pool, per="dataset")
    assert by_topic(found) == pytest.approx({"a": 4 / 6, "c": 1 / 6, "d": 1 / 6})
    assert found.shares(found.weights) == pytest.approx({"x": 4 / 6, "y/z": 2 / 6})
    assert set(found.rows) == {"x/0", "x/1", "y/z/0", "y/z/1"}
    assert found.sources == {name: name.rsplit("/", 1)[0] for name in found.mixture}
    assert by_topic(cut({"target": "dd"}, pool, per="dataset")) == {"d": 1.0}


def test_the_source_of_a_cluster_is_a_dataset_that_it_has_rows_of() -> None:
    found = cut({"target": "ab"})
    sources = {topics_of(found.mixture[name])[0]: source for name, source in found.sources.items()}
    assert sources["a"] == "x"
    assert all(found.rows[name][source] for name, source in found.sources.items())


def test_a_second_call_neither_encodes_nor_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    crisp = CRISP(levels=2, branching=2)
    first = partition(POOL, {"target": rows_on("aab")}, topic_encoder(), crisp, least_rows=4)
    again = topic_encoder()
    passes = count_texts(again)
    monkeypatch.setitem(sys.modules, "faiss", None)
    second = partition(POOL, {"target": rows_on("aab")}, again, crisp, least_rows=4)
    assert passes == []
    assert (second.weights, second.rows) == (first.weights, first.rows)
    assert second.mixture.fingerprints == first.mixture.fingerprints
    assert [rows.rows.to_list() for rows in second.mixture.values()] == [
        rows.rows.to_list() for rows in first.mixture.values()
    ]
    # Other smoothing and other sizes of clusters use the same tree; another seed does not.
    partition(POOL, {"target": rows_on("aab")}, again, CRISP(levels=2, branching=2, smoothing=1.0), least_rows=9)
    with pytest.raises(RecipeError, match="faiss"):
        partition(POOL, {"target": rows_on("aab")}, again, crisp, least_rows=4, seed=1)


def test_the_seed_alone_decides_clusters_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Mixture({"x": rows_on("abcd" * 20)})
    found = []
    for number, seed in enumerate((1, 1, 2)):
        monkeypatch.setenv("MIXFLUENCE_CACHE", str(tmp_path / str(number)))
        found.append(cut({"target": "abcd"}, pool, levels=2, seed=seed))
    assert found[0].rows == found[1].rows
    assert found[0].mixture.fingerprints == found[1].mixture.fingerprints
    assert set(found[0].mixture.fingerprints.values()) != set(found[2].mixture.fingerprints.values())


def test_fingerprints_tell_which_rows_of_which_content() -> None:
    pool = Mixture({"x": rows_on("abba" * 10)})
    other = Mixture({"x": rows_on("abba" * 10, seed=7)})
    one, two = (cut({"target": "ab"}, each).mixture.fingerprints for each in (pool, other))
    assert len({*one.values(), *two.values()}) == 4


def test_the_text_of_a_cluster_stays_in_the_file_of_its_dataset() -> None:
    def kept(name: str) -> RowSet:
        return convert_once([], {"name": name}, lambda _: (Row(**row) for row in POOL[name].rows))

    pool = Mixture({name: kept(name) for name in POOL})
    found = partition(pool, {"target": rows_on("ab")}, ENCODER, CRISP(branching=2), least_rows=4)
    sources = {file["filename"] for rows in pool.values() for file in rows.rows.cache_files}
    for rows in found.mixture.values():
        files = {file["filename"] for file in rows.rows.cache_files}
        assert files
        assert files <= sources


@pytest.mark.parametrize("per", ["pool", "dataset"])
def test_clusters_share_the_token_ids_of_their_pool(per: str) -> None:
    tokeniser = Tokeniser(ENCODER)
    for rows in POOL.values():
        tokenise(rows, tokeniser, Prompts())
    folders = set((cache_root() / "tokens").iterdir())
    for branching in (2, 3):
        found = cut({"target": "ab"}, branching=branching, per=per, smoothing=1.0)
        for rows in found.mixture.values():
            taken = tokenise(rows, tokeniser, Prompts())
            anchors = [VOCABULARY[ids[0] - 1] for ids in taken.queries.token_ids(taken.anchors)]
            passages = taken.documents.token_ids(taken.candidates(np.arange(len(rows)), 0)[0][:, 0])
            assert anchors == list(rows.rows["anchor"])
            assert [VOCABULARY[ids[0] - 1] for ids in passages] == list(rows.rows["positive"])
    more = set((cache_root() / "tokens").iterdir()) - folders
    assert len(more) == (1 if per == "pool" else 0), "the pool is tokenised once, and single datasets not again"


def test_datasets_with_other_types_of_scores_share_clusters() -> None:
    wide = Dataset.from_list([Row(f"a{i}", "a1", ["b1"], [0.5, 0.25])._asdict() for i in range(9)])
    found = cut({"target": "a"}, Mixture({"x": POOL["x"], "wide": wide}))
    (rows,) = found.mixture.values()
    assert len(rows) == 29
    assert sorted(map(len, rows.rows["scores"])) == [0] * 20 + [2] * 9


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("levels", 0),
        ("branching", 1),
        ("least_rows", 0),
        ("smoothing", -0.5),
        ("smoothing", float("nan")),
        ("smoothing", float("inf")),
        ("per", "row"),
        ("texts", "negative"),
    ],
)
def test_bad_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=option):
        cut({"target": "a"}, **{option: value})


def test_targets_must_be_there() -> None:
    with pytest.raises(RecipeError, match="dev set"):
        cut({})
    with pytest.raises(DataError, match=r"^target: "):
        cut({"target": ""})


def test_training_draws_from_clusters_with_a_weight(tmp_path: Path) -> None:
    pool = Mixture({"x": rows_on("abba" * 10), "y": rows_on("cddc" * 10)})
    found = cut({"target": "aaac"}, pool, per="dataset")
    model = topic_encoder()
    trainer = MixtureTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=3),
        train_dataset=found.mixture,
        strategy=Static(init=Weights(found.weights)),
        loss=info_nce(model),
    )
    trainer.train()
    assert trainer.state.global_step == 3
    assert {topics_of(rows)[0] for rows in trainer.mixture.values()} == {"a", "c"}
    assert by_topic(found) == pytest.approx({"a": 3 / 4, "c": 1 / 4})
    assert trainer.probabilities() == pytest.approx(found.weights)
    numbers = [number for line in read_trace(tmp_path / "trace.jsonl")[1:] for number in line["trained"]]
    drawn = Counter(list(found.mixture)[number] for number in numbers)
    assert drawn.total() == 3
    assert dict(zip(found.mixture, trainer.sampler.rows_drawn.tolist(), strict=True)) == {
        name: 4 * drawn[name] for name in found.mixture
    }
    assert sum(found.shares(drawn).values()) == pytest.approx(3)
