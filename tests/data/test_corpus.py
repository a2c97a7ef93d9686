"""Pairs made from bare documents.

- Each kind of pair has its own rows; query and passage do not repeat each other.
- Splits are of documents: no document gives pairs to two of them, and they do not depend on order or seed.
- Labelled queries name documents by id or by text, and search all documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixfluence.data.corpus import MAX_HELD_OUT, CorpusSource, Document, read_documents, sections, take_split
from mixfluence.errors import DataError, RecipeError
from mixfluence.recipe_yaml import load_recipe

KINDS = ("title", "first-sentence", "crop", "heading")
SPLITS = ("train", "dev", "test")
BODY = "The pump runs at night. It stops when the tank is full, and then a lamp on the front panel shows it."


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = [f"Item {i} needs care w{i}. " + " ".join(f"word{i}x{j}" for j in range(60)) for i in range(100)]
    return write(
        tmp_path / "docs.jsonl",
        [{"_id": f"d{i}", "title": f"How item {i} works", "text": text} for i, text in enumerate(texts)],
    )


def pairs(path: Path, kind: str, split: str = "all", **options: Any) -> list[tuple[str, str]]:
    rows = CorpusSource(path=path, kind=kind, split=split, **options).read_rows().rows
    return list(zip(rows["anchor"], rows["positive"], strict=True))


def test_title_and_first_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "docs.jsonl", [{"title": " The  pump unit ", "text": BODY}])
    assert pairs(path, "title") == [("The pump unit", BODY)]
    first, rest = BODY.split(". ", 1)
    assert pairs(path, "first-sentence") == [(f"{first}.", rest)]


def test_an_abbreviation_is_no_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "docs.jsonl", [{"text": f"Dr. Ada wrote this. {BODY}"}])
    assert pairs(path, "first-sentence")[0][0] == "Dr. Ada wrote this."


def test_a_crop_is_taken_out_of_its_passage(corpus: Path) -> None:
    documents = {document.id: document.text for document in read_documents(corpus)}
    rows = pairs(corpus, "crop")
    assert len(rows) == len(documents)
    for (crop, rest), text in zip(rows, documents.values(), strict=True):
        assert 4 <= len(crop.split()) <= 24
        assert sorted(crop.split() + rest.split()) == sorted(text.split())
        assert " ".join(crop.split()) in " ".join(text.split())


def test_crops_depend_on_the_seed_alone(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = pairs(corpus, "crop")
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(tmp_path / "another"))
    assert pairs(corpus, "crop") == first
    assert pairs(corpus, "crop", seed=1) != first
    assert pairs(corpus, "title", seed=1) == pairs(corpus, "title")


def test_long_documents_have_several_passages(tmp_path: Path) -> None:
    text = " ".join(f"w{i}." for i in range(110))
    path = write(tmp_path / "docs.jsonl", [{"title": "A long one", "text": text}])
    assert len(pairs(path, "crop", words=30)) == 4
    assert pairs(path, "title", words=30) == [("A long one", " ".join(text.split()[:30]))]


def test_text_without_spaces_is_cropped_by_characters(tmp_path: Path) -> None:
    text = "水泵在夜间运行。水箱满时它会停止,前面板上的灯会亮起。请每月检查一次水位,并且清洁过滤器。"
    path = write(tmp_path / "docs.jsonl", [{"text": text}])
    assert pairs(path, "first-sentence") == [("水泵在夜间运行。", text.partition("。")[2])]
    ((crop, rest),) = pairs(path, "crop")
    assert crop in text
    assert sorted(crop + rest) == sorted(text)


def test_a_folder_of_markdown_has_titles_and_headings(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    fence = "```\n# no heading\n```"
    (tmp_path / "deep" / "a.md").write_text(f"# The pump\n\nIntro.\n\n## Use ##\n{BODY}\n{fence}\n### Care\n{BODY}")
    (tmp_path / "b.txt").write_text(f"\ufeff{BODY}\n\n{BODY}", encoding="utf-8")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    documents = {document.id: document for document in read_documents(tmp_path)}
    assert set(documents) == {"b.txt", "deep/a.md"}
    assert documents["deep/a.md"].title == "The pump"
    assert documents["b.txt"] == Document("b.txt", "", f"{BODY}\n\n{BODY}")
    rows = dict(pairs(tmp_path, "heading"))
    assert list(rows) == ["The pump: Use", "The pump: Care"]
    assert fence in rows["The pump: Use"]
    assert rows["The pump: Care"] == BODY


def test_text_before_the_first_heading_has_none() -> None:
    assert list(sections("a\n# b\nc")) == [("", "a"), ("b", "c")]


def test_documents_without_such_pairs_are_counted(tmp_path: Path) -> None:
    records = [{"id": 1, "text": BODY}, {"id": 2, "title": "With a title", "text": BODY}, {"id": 3, "text": "short"}]
    source = CorpusSource(path=write(tmp_path / "docs.jsonl", records), kind="title", split="all")
    (note,) = source.read_rows().notes
    assert "2 of 3 documents without a title" in note
    assert "'1', '3'" in note
    with pytest.raises(DataError, match="no pairs of the kind 'heading'"):
        pairs(tmp_path / "docs.jsonl", "heading")


@pytest.mark.parametrize("kind", ["title", "crop"])
def test_no_document_is_in_two_splits(corpus: Path, kind: str) -> None:
    parts = {split: pairs(corpus, kind, split) for split in SPLITS}
    assert [len(parts[split]) for split in SPLITS] == [80, 10, 10]
    assert sorted(pair for part in parts.values() for pair in part) == sorted(pairs(corpus, kind))


def test_splits_do_not_depend_on_order_or_kind() -> None:
    documents = [Document(str(i), "", f"text {i}") for i in range(20_000)]
    dev = take_split(documents, "dev")
    assert len(dev) == MAX_HELD_OUT
    assert sorted(take_split(documents[::-1], "dev")) == sorted(dev)


def test_a_tiny_corpus_is_not_split(tmp_path: Path) -> None:
    path = write(tmp_path / "docs.jsonl", [{"text": BODY}])
    with pytest.raises(DataError, match="1 document, too few"):
        pairs(path, "crop", "dev")


def test_held_out_pairs_search_the_passages_of_all_documents(corpus: Path) -> None:
    task = CorpusSource(path=corpus, kind="title", split="dev").read_task("held out")
    assert (len(task.queries), len(task.docs)) == (10, 100)
    texts = dict(zip(task.doc_ids, task.docs, strict=True))
    found = [
        (query, texts[next(iter(task.qrels[id]))]) for id, query in zip(task.query_ids, task.queries, strict=True)
    ]
    assert found == pairs(corpus, "title", "dev")


@pytest.mark.parametrize("column", ["doc_id", "doc_ids", "positive"])
def test_labelled_queries_name_documents_by_id_or_text(corpus: Path, tmp_path: Path, column: str) -> None:
    documents = read_documents(corpus)
    values: dict[str, list[Any]] = {
        "doc_id": [document.id for document in documents],
        "doc_ids": [[document.id] for document in documents],
        "positive": [document.text for document in documents],
    }
    records = [{"query": f"what about {i}?", column: values[column][i]} for i in range(20)]
    queries = write(tmp_path / "queries.jsonl", records)
    tasks = [
        CorpusSource(path=corpus, kind="queries", queries=queries, split=split).read_task(split)
        for split in ("dev", "test")
    ]
    assert [task.counts for task in tasks] == [{"queries": 10, "judgements": 10, "passages": 100}] * 2
    assert {query for task in tasks for query in task.queries} == {record["query"] for record in records}
    for task in tasks:
        texts = dict(zip(task.doc_ids, task.docs, strict=True))
        for id, query in zip(task.query_ids, task.queries, strict=True):
            expected = documents[int(query.split()[-1][:-1])].whole
            assert [texts[doc] for doc in task.qrels[id]] == [expected]
    rows = CorpusSource(path=corpus, kind="queries", queries=queries, split="dev").read_rows().rows
    assert list(rows["anchor"]) == list(tasks[0].queries)


def test_positives_that_are_no_document_are_added_with_a_note(corpus: Path, tmp_path: Path) -> None:
    queries = write(tmp_path / "queries.jsonl", [{"query": f"q{i}", "positive": f"other text {i}"} for i in range(4)])
    task = CorpusSource(path=corpus, kind="queries", queries=queries, split="test").read_task("labelled")
    assert len(task.docs) == 102
    assert "positives are the text of no document" in task.notes[0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "a"}\n{"text": 3}', r"docs\.jsonl:2: .*'text', expected text"),
        ('{"text": "a"}\n{"title": "b"}', r"docs\.jsonl:2: expected 'text' .*'title'"),
        ('{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}', r"docs\.jsonl:2: the id '1' already exists"),
        ("", r"docs\.jsonl: contains no documents"),
        ('["a", "b"]', r"docs\.jsonl:1: .*expected an object"),
    ],
)
def test_a_bad_document_is_named_by_its_line(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(lines)
    with pytest.raises(DataError, match=message):
        pairs(path, "crop")


def test_labelled_queries_that_name_no_text_are_refused(corpus: Path, tmp_path: Path) -> None:
    queries = write(
        tmp_path / "q.jsonl", [{"query": name, "document": f"d{number}"} for number, name in enumerate("abcd")]
    )
    with pytest.raises(DataError, match=r"q\.jsonl: .*'a'.*'doc_id'"):
        pairs(corpus, "queries", queries=queries)


def test_an_unknown_document_is_named_by_the_line_of_its_query(corpus: Path, tmp_path: Path) -> None:
    queries = write(tmp_path / "q.jsonl", [{"query": "a", "doc_id": "d1"}, {"query": "b", "doc_id": "gone"}])
    with pytest.raises(DataError, match=r"q\.jsonl:2: found 'gone' as 'doc_id'"):
        pairs(corpus, "queries", queries=queries)


def test_labelled_queries_that_are_too_few_to_be_halved_are_refused(corpus: Path, tmp_path: Path) -> None:
    queries = write(tmp_path / "q.jsonl", [{"query": f"q{n}", "doc_id": f"d{n}"} for n in range(3)])
    for split in "dev", "test":
        with pytest.raises(DataError, match=r"q\.jsonl: expected at least 4 labelled queries.*found 3"):
            pairs(corpus, "queries", split, queries=queries)
    assert len(pairs(corpus, "queries", "all", queries=queries)) == 3


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files ending in .*\.md"):
        pairs(tmp_path, "crop")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "queries", "split": "dev"}, "needs a file of labelled queries"),
        ({"kind": "queries", "split": "train", "queries": "docs.jsonl"}, "labelled queries are dev and test"),
        ({"kind": "title", "split": "all", "queries": "absent.jsonl"}, "queries: no such file"),
        ({"kind": "summary", "split": "all"}, "kind"),
    ],
)
def test_options_that_make_no_sense_are_refused(corpus: Path, options: dict[str, Any], message: str) -> None:
    if "queries" in options:
        options = options | {"queries": corpus.with_name(options["queries"])}
    with pytest.raises(RecipeError, match=message):
        CorpusSource(path=corpus, **options)


def test_a_recipe_has_a_training_set_of_each_kind(corpus: Path) -> None:
    recipe = corpus.with_name("recipe.yaml")
    recipe.write_text(
        f"name: own\nmodel: {{name: minilm}}\ntraining: {{steps: 1, batch_size: 2}}\n"
        f"defaults: {{format: corpus, path: {corpus}, kind: '{{name}}'}}\n"
        "train: [title, first-sentence, crop]\ndev: [title]\n"
    )
    loaded = load_recipe(recipe)
    sizes = {name: len(source.read_rows()) for name, source in loaded.train.items()}
    assert sizes == {"title": 80, "first-sentence": 80, "crop": 80}
    assert len(loaded.dev["title"].read_rows()) == 10
    assert list(loaded.warnings()) == []
