"""Our numbers are those of pytrec_eval, and no query gets lost."""

from __future__ import annotations

import random

import numpy as np
import pytest
import pytrec_eval

from mixfluence.evaluation import MEASURES, mean, score_run


def random_run(rng: random.Random) -> dict[str, dict[str, float]]:
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
    run, qrels = random_run(rng), random_qrels(rng)
    names = {"ndcg@10": "ndcg_cut_10", "recall@100": "recall_100", "map@100": "map_cut_100"}
    direct = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
    cut = {query: top_10(hits) for query, hits in run.items()}
    reciprocal = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(cut)
    scores = score_run(run, qrels)
    assert set(scores) == set(qrels)
    for query, found in scores.items():
        expected = {name: direct[query][trec] for name, trec in names.items()}
        assert found == expected | {"mrr@10": reciprocal[query]["recip_rank"]}


@pytest.mark.parametrize(("rank", "expected"), [(1, 1.0), (10, 0.1), (11, 0.0)])
def test_mrr_ends_at_rank_10(rank: int, expected: float) -> None:
    hits = {f"d{i}": float(-i) for i in range(1, 13)}
    assert score_run({"q": hits}, {"q": {f"d{rank}": 1}})["q"]["mrr@10"] == expected


def test_equal_scores_are_ordered_by_descending_id() -> None:
    assert score_run({"q": {"a": 1.0, "b": 1.0}}, {"q": {"a": 1}})["q"]["mrr@10"] == 0.5
    assert score_run({"q": {"z": 1.0, "b": 1.0}}, {"q": {"z": 1}})["q"]["mrr@10"] == 1.0


def test_queries_without_hits_or_positives_count_as_zero() -> None:
    qrels = {"hit": {"d": 1}, "missing": {"d": 1}, "empty": {"d": 1}, "negative": {"d": 0}}
    run = {"hit": {"d": 1.0}, "empty": {}, "negative": {"d": 1.0}, "unjudged": {"d": 1.0}}
    scores = score_run(run, qrels, [*qrels, "unjudged"])
    assert set(scores) == {*qrels, "unjudged"}
    for measure in MEASURES:
        assert mean(scores, measure) == pytest.approx(1 / 5)


def test_only_the_listed_queries_are_scored() -> None:
    scores = score_run({"a": {"d": 1.0}}, {"a": {"d": 1}, "text-less": {"d": 1}}, ["a"])
    assert list(scores) == ["a"]
