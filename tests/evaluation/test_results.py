"""Measures equal those of pytrec_eval for every query, and files of per-query scores round-trip."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from mixfluence.errors import DataError
from mixfluence.evaluation import MEASURES, Evaluation, read_evaluation, score_rankings, write_evaluation


def evaluation(dataset: str) -> Evaluation:
    per_query = {query: {measure: (i + 1) / 7 for measure in MEASURES} for i, query in enumerate(["q\n1", "é", ""])}
    return Evaluation(dataset, per_query)


def assert_round_trip(dataset: str, folder: Path) -> None:
    written = evaluation(dataset)
    path = write_evaluation(written, folder)
    assert path.parent == folder
    assert list(folder.iterdir()) == [path]
    assert read_evaluation(path) == written


HOSTILE = ["beir/nq", "../../etc", "..", ".", "", "a b%2F\0\n", "über.jsonl", "-x"]


@pytest.mark.parametrize("dataset", HOSTILE)
def test_hostile_names_round_trip(dataset: str, tmp_path: Path) -> None:
    assert_round_trip(dataset, tmp_path / "runs")


@settings(deadline=None)
@given(dataset=st.text(max_size=15))
def test_any_name_round_trips(dataset: str) -> None:
    with TemporaryDirectory() as folder:
        assert_round_trip(dataset, Path(folder))


def test_means() -> None:
    scores = evaluation("nq")
    assert scores.mean("ndcg@10") == pytest.approx(2 / 7)
    assert scores.summary() == dict.fromkeys(MEASURES, scores.mean("ndcg@10"))


@pytest.mark.parametrize(
    ("damaged", "place"),
    [
        ("{", ":2: damaged line"),
        ('{"query_id": "q"}', r":2: .*ndcg@10"),
        ("[1]", ":2: "),
        ("7", ":2: "),
        ('{"query_id": "q", "ndcg@10": 1.5, "mrr@10": 1, "recall@100": 1, "map@100": 1}', r":2: .*1\.5"),
    ],
)
def test_damaged_lines_are_named(damaged: str, place: str, tmp_path: Path) -> None:
    path = write_evaluation(evaluation("nq"), tmp_path)
    first = path.read_text(encoding="utf-8").split("\n")[0]
    path.write_text(f"{first}\n{damaged}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"nq\.jsonl{place}"):
        read_evaluation(path)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nq\.jsonl: "):
        read_evaluation(tmp_path / "nq.jsonl")
    (tmp_path / "nq.jsonl").touch()
    with pytest.raises(DataError, match=r"nq\.jsonl: "):
        read_evaluation(tmp_path / "nq.jsonl")


def random_rankings(rng: random.Random) -> dict[str, dict[str, float]]:
    """Few distinct scores, so that ties are everywhere, some only ties once narrowed to float32."""
    levels = [0.1, 0.1 + 1e-9, 0.5, 0.9]
    docs = [f"d{i}" for i in range(150)]
    return {f"q{i}": {doc: rng.choice(levels) for doc in rng.sample(docs, 120)} for i in range(30)}


def random_qrels(rng: random.Random) -> dict[str, dict[str, int]]:
    grades = [-1, 0, 1, 2, 3]
    return {
        f"q{i}": {f"d{doc}": rng.choice(grades) for doc in rng.sample(range(150), rng.randint(1, 6))}
        for i in range(30)
    }


def top_10(hits: dict[str, float]) -> dict[str, float]:
    ranked = sorted(hits.items(), key=lambda hit: (np.float32(hit[1]), hit[0].encode()), reverse=True)
    return dict(ranked[:10])


@pytest.mark.parametrize("seed", range(5))
def test_equals_pytrec_eval(seed: int) -> None:
    rng = random.Random(seed)
    rankings, qrels = random_rankings(rng), random_qrels(rng)
    names = {"ndcg@10": "ndcg_cut_10", "recall@100": "recall_100", "map@100": "map_cut_100"}
    direct = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(rankings)
    cut = {query: top_10(hits) for query, hits in rankings.items()}
    reciprocal = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(cut)
    scores = score_rankings(rankings, qrels)
    assert set(scores) == set(qrels)
    for query, found in scores.items():
        expected = {name: direct[query][trec] for name, trec in names.items()}
        assert found == expected | {"mrr@10": reciprocal[query]["recip_rank"]}


@pytest.mark.parametrize(("rank", "expected"), [(1, 1.0), (10, 0.1), (11, 0.0)])
def test_mrr_ends_at_rank_10(rank: int, expected: float) -> None:
    hits = {f"d{i}": float(-i) for i in range(1, 13)}
    assert score_rankings({"q": hits}, {"q": {f"d{rank}": 1}})["q"]["mrr@10"] == expected


def test_equal_scores_are_ordered_by_descending_id() -> None:
    assert score_rankings({"q": {"a": 1.0, "b": 1.0}}, {"q": {"a": 1}})["q"]["mrr@10"] == 0.5
    assert score_rankings({"q": {"z": 1.0, "b": 1.0}}, {"q": {"z": 1}})["q"]["mrr@10"] == 1.0


def test_queries_without_hits_or_positives_count_as_zero() -> None:
    qrels = {"hit": {"d": 1}, "missing": {"d": 1}, "empty": {"d": 1}, "negative": {"d": 0}}
    rankings = {"hit": {"d": 1.0}, "empty": {}, "negative": {"d": 1.0}, "unjudged": {"d": 1.0}}
    scores = score_rankings(rankings, qrels, [*qrels, "unjudged"])
    assert set(scores) == {*qrels, "unjudged"}
    for measure in MEASURES:
        assert Evaluation("nq", scores).mean(measure) == pytest.approx(1 / 5)


def test_only_the_listed_queries_are_scored() -> None:
    scores = score_rankings({"a": {"d": 1.0}}, {"a": {"d": 1}, "text-less": {"d": 1}}, ["a"])
    assert list(scores) == ["a"]


def test_grades_below_zero_are_not_relevant_and_absurd_ones_are_refused() -> None:
    """Two queries that have only grades of -2 used to end the process."""
    qrels = {"a": {"x": -2}, "b": {"x": -5}, "c": {"x": -3, "y": 2}}
    rankings = {query: {"x": 2.0, "y": 1.0} for query in qrels}
    scores = score_rankings(rankings, qrels)
    assert [scores[query]["mrr@10"] for query in qrels] == [0.0, 0.0, 0.5]
    with pytest.raises(DataError, match="'a'"):
        score_rankings(rankings, {"a": {"x": 2**31 - 1}})
