"""Dev queries are ranked as in an evaluation, and their files round-trip.

- Ranks and margins are those of the cosines; NDCG@10 equals that of `evaluate`.
- Prompts of the dataset are used; rows after the first thousand and hard negatives are not.
- Files are read as written, for any dataset name and text; damaged ones are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from mixfluence.data.retrieval import RetrievalSet
from mixfluence.data.rows import Row, RowSet
from mixfluence.errors import DataError, MixfluenceError
from mixfluence.evaluation.results import (
    MAX_CHARACTERS,
    DevQuery,
    rank_queries,
    read_dev_queries,
    write_dev_queries,
)
from mixfluence.evaluation.retrieval import evaluate
from mixfluence.recipe import Recipe
from mixfluence.testing import DEV_ROWS, rank_dev
from tests.conftest import row_set


def rank(
    model: SentenceTransformer, rows: RowSet, folder: Path, query: str | None = None, passage: str | None = None
) -> list[DevQuery]:
    """Return what a run writes about a dev set with these prompts."""
    source = {"format": "pairs", "path": "x", "query_prompt": query, "passage_prompt": passage}
    data = {
        "name": "x",
        "model": {"name": "minilm"},
        "train": {"dev": source},
        "dev": {"dev": source},
        "training": {"steps": 1, "batch_size": 2},
    }
    rank_dev(Recipe.model_validate(data, context={"files_may_be_missing": True}), model, {"dev": rows}, folder)
    name, found = read_dev_queries(folder / "dev.jsonl")
    assert name == "dev"
    return found


def test_ranks_and_margins_are_those_of_the_cosines(tiny_bert: SentenceTransformer, task: RetrievalSet) -> None:
    tiny_bert.train()
    found = rank_queries(tiny_bert, task, batch_size=7)
    assert tiny_bert.training
    queries = tiny_bert.encode_query(list(task.queries), convert_to_tensor=True, normalize_embeddings=True)
    passages = tiny_bert.encode_document(list(task.docs), convert_to_tensor=True, normalize_embeddings=True)
    scored = evaluate(tiny_bert, task).per_query
    for number, (query, cosines) in enumerate(zip(found, queries @ passages.T, strict=True)):
        relevant = torch.tensor([doc in task.qrels[f"q{number}"] for doc in task.doc_ids])
        best, rival = cosines[relevant].max(), cosines[~relevant].max()
        assert query.query == task.queries[number]
        assert query.rank == 1 + int((cosines > best).sum())
        assert query.margin == pytest.approx(float(best - rival), abs=1e-5)
        assert (query.rank == 1) == (query.margin > 0)
        assert query.positive == task.docs[int(torch.where(relevant, cosines, -2).argmax())]
        assert query.other == task.docs[int(torch.where(relevant, -2, cosines).argmax())]
        assert query.ndcg == pytest.approx(scored[f"q{number}"]["ndcg@10"])
    assert len({query.rank for query in found}) > 3


def test_a_query_that_every_passage_answers_has_no_other(make_static: Callable[[], SentenceTransformer]) -> None:
    task = RetrievalSet("one", ["q"], ["w1"], ["a", "b"], ["w2", "w1 w3"], {"q": {"a": 1, "b": 1}})
    (query,) = rank_queries(make_static(), task)
    assert query == DevQuery("w1", "w1 w3", "", rank=1, among=2, margin=0.0, ndcg=1.0)


def test_embeddings_that_are_not_numbers_are_refused(
    make_static: Callable[[], SentenceTransformer], task: RetrievalSet
) -> None:
    model = make_static()
    next(model.parameters()).data.fill_(torch.nan)
    with pytest.raises(MixfluenceError, match=r"^tiny: "):
        rank_queries(model, task)


def test_only_the_first_rows_and_only_their_positives_are_ranked(
    make_static: Callable[[], SentenceTransformer], tmp_path: Path
) -> None:
    rows = [Row(f"w{i % 190} w{i % 7}", f"w{i % 190} w{i % 11}", negatives=["w199"]) for i in range(DEV_ROWS)]
    late = [Row("w198", "w198", negatives=["w197"])]
    found = rank(make_static(), row_set(*rows, *late), tmp_path)
    assert [query.query for query in found] == list(dict.fromkeys(row.anchor for row in rows))
    assert {query.among for query in found} == {len({row.positive for row in rows})}
    assert {"w197", "w198", "w199"}.isdisjoint(query.other for query in found)


def test_a_datasets_prompts_count_before_those_of_the_model(
    make_static: Callable[[], SentenceTransformer], task: RetrievalSet, tmp_path: Path
) -> None:
    rows = row_set(*(Row(query, doc) for query, doc in zip(task.queries, task.docs, strict=False)))
    model = make_static()

    def margins(*prompts: str | None) -> list[float]:
        return [query.margin for query in rank(model, rows, tmp_path, *prompts)]

    bare, prompted = margins(), margins("w1 w2 ", "w4 w5 w6 ")
    assert bare != prompted
    model.prompts = {"query": "w1 w2 ", "document": "w4 w5 w6 "}
    assert margins() == prompted
    assert margins("", "") == bare


def test_long_texts_are_truncated(make_static: Callable[[], SentenceTransformer], tmp_path: Path) -> None:
    rows = row_set(Row("w1 " * 200, "w2 " * 200), Row("w3", "w4"))
    first, second = rank(make_static(), rows, tmp_path)
    assert MAX_CHARACTERS - 2 <= len(first.query) == len(first.positive) <= MAX_CHARACTERS + 1
    assert first.query.endswith("w1…")
    assert (second.query, second.positive, second.other) == ("w3", "w4", first.positive)


@pytest.mark.parametrize("name", ["../up", "a/b", "<script>", "%2e", "名"])
def test_a_file_reads_back_and_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    query = DevQuery("line\none\u2028two\r", "<b>", "", rank=3, among=5, margin=-0.25, ndcg=0.5)
    path = write_dev_queries(name, [query, query], tmp_path / "dev")
    assert path.parent == tmp_path / "dev"
    assert read_dev_queries(path) == (name, [query, query])


def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    good = json.dumps(asdict(DevQuery("q", "p", "o", 1, 2, 0.1, 1.0)))
    for bad in ("[1", '{"query": "q"}', "7", good.replace("0.1", '"x"')):
        path.write_text(f"{good}\n{bad}\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"dev\.jsonl:2: "):
            read_dev_queries(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"dev\.jsonl: "):
        read_dev_queries(path)
    with pytest.raises(DataError, match=r"absent\.jsonl: "):
        read_dev_queries(tmp_path / "absent.jsonl")
