"""The token cache.

- A batch read from it equals sentence-transformers' `preprocess` of the same texts, padded on either side or
  flat, with prompts and with truncation.
- Text is tokenised once: a second run only probes the tokenizer.
- Equal rows share a folder however they are stored; another prompt, length or tokenizer has its own.
- If several processes need a folder, one builds it.
- An interrupted build leaves no complete folder; the files of a killed one are deleted a day later.
- Short lists of negatives repeat; a row without any borrows from the batch and never gets its own positive.
- Teacher scores stay with their passages; a wrong number of them is an error.
- Equal texts have equal keys on both sides.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer

from mixfluence.data import cache, tokenize
from mixfluence.data.cache import cache_root
from mixfluence.data.rows import Row, RowSet, fingerprint, text_key, write_rows
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.data.tokens import Ids, TokenLayout, TokenTable
from mixfluence.errors import DataError, MixfluenceError
from tests.conftest import WORDS, row_set

pytestmark = pytest.mark.slow

PROMPTS = Prompts("w7 w8 ", "w9 ")
MakeModel = Callable[[], SentenceTransformer]


def text(start: int, length: int) -> str:
    return " ".join(WORDS[start : start + length])


# Texts of 1 to 30 words (the tiny transformer cuts queries at 8 tokens, passages at 16), each repeated somewhere.
ROWS = [Row(text(i, 1 + i % 11), text(40 + i % 13, 1 + i * 7 % 30), [text(80 + i % 5, 3 + i)] * 2) for i in range(24)]


@pytest.fixture(params=["static", "transformer", "padded left"])
def model(
    request: pytest.FixtureRequest, make_static: MakeModel, tiny_bert: SentenceTransformer
) -> SentenceTransformer:
    if request.param == "static":
        return make_static()
    tiny_bert.tokenizer.padding_side = "left" if request.param == "padded left" else "right"
    return tiny_bert


def folders() -> set[Path]:
    return set((cache_root() / "tokens").glob("*"))


def features(table: TokenTable, positions: list[int]) -> dict[str, Any]:
    return table.layout.features(table.token_ids(np.array(positions)))


def assert_equal_features(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert found[name].tolist() == value.tolist()
        else:
            assert found[name] == value


@pytest.mark.parametrize("prompts", [Prompts(), PROMPTS])
def test_a_batch_from_the_cache_equals_preprocess(model: SentenceTransformer, prompts: Prompts) -> None:
    tokenised = tokenise(row_set(*ROWS), Tokeniser(model), prompts)
    for rows in (np.arange(24), np.array([5, 17, 2]), np.array([3])):
        anchors = features(tokenised.queries, tokenised.anchors[rows].tolist())
        texts = [ROWS[row].anchor for row in rows]
        expected = model.preprocess(texts, prompt=prompts.query or None, task="query")
        assert_equal_features(anchors, {**expected, "task": "query"})
        passages, _ = tokenised.candidates(rows, 2)
        for column in range(3):
            texts = [(ROWS[row].positive, *ROWS[row].negatives)[column] for row in rows]
            expected = model.preprocess(texts, prompt=prompts.document or None, task="document")
            found = features(tokenised.documents, passages[:, column].tolist())
            assert_equal_features(found, {**expected, "task": "document"})


@pytest.mark.parametrize("chunks_per_worker", [1, 1_000], ids=["on all cores", "on one"])
def test_many_texts_of_many_chunks_keep_their_order(
    make_static: MakeModel, monkeypatch: pytest.MonkeyPatch, chunks_per_worker: int
) -> None:
    monkeypatch.setattr(tokenize, "ROWS_PER_CHUNK", 5)
    monkeypatch.setattr(tokenize, "CHUNKS_PER_WORKER", chunks_per_worker)
    monkeypatch.setattr(tokenize, "TEXTS_PER_CALL", 2)
    done: list[int] = []
    tokenised = tokenise(row_set(*ROWS), Tokeniser(make_static()), Prompts(), done.append)
    words = [[WORDS[i - 1] for i in ids] for ids in tokenised.queries.token_ids(tokenised.anchors)]
    assert words == [row.anchor.split() for row in ROWS]
    assert sum(done) == len(tokenised) == len(ROWS)
    assert len(tokenised.documents.lengths) == len({text for row in ROWS for text in (row.positive, *row.negatives)})


def test_rows_may_repeat_the_texts_of_all_earlier_rows(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize, "ROWS_PER_CHUNK", 2)
    tokenised = tokenise(row_set(*[Row("w1", f"w{number % 3}") for number in range(8)]), Tokeniser(model), Prompts())
    assert tokenised.anchors.tolist() == [0] * 8
    assert len(tokenised.queries.lengths) == 1
    assert len(tokenised.documents.lengths) == 3


def test_text_is_tokenised_once(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    of_texts = tokenize.Side.tokenise

    def counting(side: tokenize.Side, texts: list[str]) -> Ids:
        asked.append(len(texts))
        return of_texts(side, texts)

    monkeypatch.setattr(tokenize.Side, "tokenise", counting)
    first = tokenise(row_set(*ROWS), Tokeniser(model), PROMPTS)
    assert sum(asked) == len(first.queries.lengths) + len(first.documents.lengths)
    times = {file: file.stat().st_mtime_ns for folder in folders() for file in folder.glob("*.[nb]*")}
    asked.clear()
    done: list[int] = []
    second = tokenise(row_set(*ROWS), Tokeniser(model), PROMPTS, done.append)
    assert not asked
    assert done == [len(ROWS)]
    assert {file: file.stat().st_mtime_ns for folder in folders() for file in folder.glob("*.[nb]*")} == times
    assert second.anchors.tolist() == first.anchors.tolist()


def test_a_model_that_changes_texts_before_it_tokenises_them_is_followed(
    tiny_bert: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = tiny_bert.preprocess

    def reversing(texts: list[str], **options: Any) -> dict[str, Any]:
        return dict(preprocess([" ".join(reversed(text.split())) for text in texts], **options))

    monkeypatch.setattr(tiny_bert, "preprocess", reversing)
    tokenised = tokenise(row_set(*ROWS), Tokeniser(tiny_bert), Prompts())
    expected = reversing([row.anchor for row in ROWS], task="query")
    found = features(tokenised.queries, tokenised.anchors.tolist())
    assert found["input_ids"].tolist() == expected["input_ids"].tolist()


def test_equal_rows_share_a_folder_however_they_are_stored(make_static: MakeModel, tmp_path: Path) -> None:
    write_rows([ROWS[0], *ROWS, ROWS[0]], tmp_path / "rows.arrow")
    stored = Dataset.from_file(str(tmp_path / "rows.arrow")).select(range(1, 25))
    tokenise(row_set(*ROWS), Tokeniser(make_static()), Prompts())
    tokenise(RowSet(stored, fingerprint(stored)), Tokeniser(make_static()), Prompts())
    assert len(folders()) == 1


def test_whatever_changes_the_ids_has_its_own_folder(tiny_bert: SentenceTransformer, make_static: MakeModel) -> None:
    rows = row_set(*ROWS)
    tokenise(rows, Tokeniser(tiny_bert), Prompts())
    changes: list[Callable[[], object]] = [
        lambda: setattr(tiny_bert[0], "query_length", 7),
        lambda: setattr(tiny_bert[0], "document_length", 15),
        lambda: setattr(tiny_bert.tokenizer, "padding_side", "left"),
        lambda: setattr(tiny_bert.tokenizer, "truncation_side", "left"),
        lambda: tiny_bert.tokenizer.add_tokens(["w3 w4"]),
    ]
    for number, change in enumerate(changes, 1):
        change()
        tokenise(rows, Tokeniser(tiny_bert), Prompts())
        assert len(folders()) == 1 + number
    for prompts in (Prompts("w1 "), Prompts("", "w1 "), Prompts("w1 ", "w1 "), Prompts("w2 ")):
        tokenise(rows, Tokeniser(tiny_bert), prompts)
    assert len(folders()) == len(changes) + 5
    tokenise(rows, Tokeniser(make_static()), Prompts())
    assert len(folders()) == len(changes) + 6


def test_every_maximum_length_shows_in_the_key(tiny_bert: SentenceTransformer) -> None:
    lengths = [2, 3, 64, 512, 513, 577, 1_153, 8_192, len(tokenize.PROBE[-1].split()) - 1]
    keys = set()
    for length in lengths:
        tiny_bert[0].query_length = length
        keys.add(Tokeniser(tiny_bert).side("query", "").fingerprint)
    assert len(keys) == len(lengths)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_short_probe_shows_what_a_long_one_does(
    tiny_bert: SentenceTransformer, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert.tokenizer.truncation_side = side
    lengths = (2, 8, 512, 577)

    def find() -> list[tuple[TokenLayout, str]]:
        found = []
        for length in lengths:
            tiny_bert[0].query_length = length
            side = Tokeniser(tiny_bert).side("query", "w1 ")
            found.append((side.layout, side.fingerprint))
        return found

    short = find()
    # Texts of different ids, so that only the long probe remains.
    monkeypatch.setattr(tokenize, "SHORT_PROBE", ["w1", "w2", "w3"])
    assert find() == short


def test_tokenising_leaves_no_trace_in_the_key(tiny_bert: SentenceTransformer) -> None:
    first = Tokeniser(tiny_bert).side("query", "w1 ").fingerprint
    tiny_bert.preprocess([text(0, 60)], task="document")
    assert Tokeniser(tiny_bert).side("query", "w1 ").fingerprint == first


def test_an_interrupted_build_leaves_nothing(tiny_bert: SentenceTransformer) -> None:
    tokeniser = Tokeniser(tiny_bert)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenise(row_set(*ROWS), tokeniser, Prompts(), interrupt)
    assert folders() == set()
    assert len(tokenise(row_set(*ROWS), tokeniser, Prompts())) == len(ROWS)
    assert len(folders()) == 1


def test_what_a_killed_build_leaves_is_deleted_a_day_later(make_static: MakeModel) -> None:
    folder = cache_root() / "tokens"
    now = time.time()
    for name, age in {"alive": 3_600.0, "killed": 90_000.0}.items():
        file = folder / f"{cache.BUILDING}{name}" / "query_ids.bin"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"1234")
        for path in (file, file.parent):
            os.utime(path, (now - age, now - age))
    tokenise(row_set(*ROWS), Tokeniser(make_static()), Prompts())
    assert [path.name for path in folder.glob(f"{cache.BUILDING}*")] == [f"{cache.BUILDING}alive"]


def test_a_folder_that_another_process_finished_first_is_taken(make_static: MakeModel, tmp_path: Path) -> None:
    rows, tokeniser = row_set(*ROWS), Tokeniser(make_static())
    anchors = tokenise(rows, tokeniser, Prompts()).anchors.tolist()
    (folder,) = folders()
    folder.rename(tmp_path / "finished")

    def interfere(_: int) -> None:
        # As on a disk without locks.
        if not folder.exists():
            (tmp_path / "finished").rename(folder)

    assert tokenise(rows, tokeniser, Prompts(), interfere).anchors.tolist() == anchors
    assert folders() == {folder}


def test_one_of_several_builds_a_folder() -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        time.sleep(0.2)
        (folder / "ids").write_text("1 2 3", encoding="utf-8")

    def need(_: int) -> str:
        return cache.cached("tokens", "key", lambda folder: (folder / "ids").read_text(encoding="utf-8"), build)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(need, range(4)))
    assert len(built) == 1
    assert found == ["1 2 3"] * 4


def test_a_disk_without_locks_has_a_cache_all_the_same(
    make_static: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert len(tokenise(row_set(*ROWS), Tokeniser(make_static()), Prompts())) == len(ROWS)
    assert len(folders()) == 1


def passage_texts(rows: RowSet, make_static: MakeModel, chosen: list[int], negatives: int) -> list[list[str]]:
    tokenised = tokenise(rows, Tokeniser(make_static()), Prompts())
    passages, scores = tokenised.candidates(np.array(chosen), negatives)
    assert scores.shape == passages.shape
    return [[" ".join(WORDS[i - 1] for i in ids) for ids in tokenised.documents.token_ids(row)] for row in passages]


def test_short_lists_of_negatives_repeat_and_long_ones_are_cut(make_static: MakeModel) -> None:
    rows = row_set(Row("w0", "w1", ["w2", "w3"]), Row("w4", "w5", ["w6", "w7", "w8", "w9", "w10"]))
    assert passage_texts(rows, make_static, [1, 0], 4) == [
        ["w5", "w6", "w7", "w8", "w9"],
        ["w1", "w2", "w3", "w2", "w3"],
    ]


@pytest.mark.parametrize("negatives", [1, 2, 5])
def test_a_row_without_negatives_borrows_but_never_its_own_positive(make_static: MakeModel, negatives: int) -> None:
    bare = [Row(f"w{i}", f"w{i + 20}") for i in range(4)]
    rows = row_set(*bare, Row("w10", "w30", ["w50"]))
    for chosen in ([0, 1, 2, 3, 4], [3, 4], [4, 1]):
        positives = [f"w{row + 20}" if row < 4 else "w30" for row in chosen]
        for row, (positive, *borrowed) in zip(
            chosen, passage_texts(rows, make_static, chosen, negatives), strict=True
        ):
            assert len(borrowed) == negatives
            assert positive == (f"w{row + 20}" if row < 4 else "w30")
            assert set(borrowed) == {"w50"} if row == 4 else set(borrowed) <= set(positives) - {positive}


def test_a_lone_row_without_negatives_has_nobody_to_borrow_from(make_static: MakeModel) -> None:
    rows = row_set(Row("w0", "w1"), Row("w2", "w3", ["w4"]))
    assert passage_texts(rows, make_static, [0], 3) == [["w1"]]
    assert passage_texts(rows, make_static, [1], 3) == [["w3", "w4", "w4", "w4"]]


def test_teacher_scores_stay_with_their_passages(make_static: MakeModel) -> None:
    rows = row_set(Row("w0", "w1", ["w2", "w3"], [0.9, 0.2, 0.3]), Row("w4", "w5", [], [0.5]), Row("w6", "w7", ["w8"]))
    tokenised = tokenise(rows, Tokeniser(make_static()), Prompts())
    assert tokenised.has_scores
    assert tokenised.least_negatives == 0
    passages, scores = tokenised.candidates(np.array([2, 0, 1]), 3)
    missing = float("nan")
    assert scores == pytest.approx(
        np.array([[missing] * 4, [0.9, 0.2, 0.3, 0.2], [0.5, missing, missing, missing]]), nan_ok=True
    )
    assert passages[1, 1] == passages[1, 3]


@pytest.mark.parametrize("scores", [[0.5], [0.5, 0.4, 0.3]])
def test_a_wrong_number_of_teacher_scores_is_an_error(make_static: MakeModel, scores: list[float]) -> None:
    rows = row_set(Row("w0", "w1", ["w2"], [1, 0]), Row("w0", "w1", ["w2"], scores))
    with pytest.raises(DataError, match=rf"row 1: {len(scores)} "):
        tokenise(rows, Tokeniser(make_static()), Prompts())
    assert folders() == set()


def test_equal_texts_have_equal_keys_on_both_sides(make_static: MakeModel) -> None:
    given = [Row("w0", "w1", ["w2", "w0"]), Row("w1", "w0", ["w1"]), Row("w2", "w1", [])]
    tokenised = tokenise(row_set(*given), Tokeniser(make_static()), Prompts("w9 ", "w8 "))
    keys = tokenised.text_keys(np.array([2, 0, 1]), 2)
    by_text = {word: text_key(word) for word in ("w0", "w1", "w2")}
    assert len(set(by_text.values())) == 3
    named = [[next(word for word, key in by_text.items() if key == found) for found in row] for row in keys.tolist()]
    assert named == [["w2", "w1", "w1", "w1"], ["w0", "w1", "w2", "w0"], ["w1", "w0", "w1", "w1"]]
    assert tokenised.distinct_positives == 2
    assert tokenised.text_keys(np.array([], np.int64), 2).shape == (0, 4)


def test_texts_without_a_token_are_kept(make_static: MakeModel) -> None:
    tokenised = tokenise(row_set(Row(" ", "w1"), Row("w2", " "), Row(" ", " ")), Tokeniser(make_static()), Prompts())
    assert [len(ids) for ids in tokenised.queries.token_ids(tokenised.anchors)] == [0, 1, 0]
    alone = tokenise(row_set(Row(" ", " ")), Tokeniser(make_static()), Prompts())
    assert features(alone.queries, [0])["offsets"].tolist() == [0]


def test_inputs_that_are_more_than_token_ids_are_refused(
    tiny_bert: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = tiny_bert.preprocess

    def with_positions(texts: list[str], **options: Any) -> dict[str, Any]:
        output = dict(preprocess(texts, **options))
        return output | {"position_ids": torch.ones_like(output["input_ids"])}

    monkeypatch.setattr(tiny_bert, "preprocess", with_positions)
    with pytest.raises(MixfluenceError, match=r"'position_ids'"):
        Tokeniser(tiny_bert).side("query", "")


def test_a_side_is_asked_once_per_prompt(tiny_bert: SentenceTransformer) -> None:
    tokeniser = Tokeniser(tiny_bert)
    first, second, third = (tokeniser.side("query", prompt) for prompt in ("", "w1 ", ""))
    assert first is third is not second


def test_a_loader_worker_is_sent_the_place_and_not_the_ids(make_static: MakeModel) -> None:
    rows = row_set(*(Row(f"w{i}", text(i, 5)) for i in range(100)))
    tokenised = tokenise(rows, Tokeniser(make_static()), Prompts())
    sent = pickle.dumps(tokenised)
    assert len(sent) < 1_000
    everything = np.arange(100)
    assert np.array_equal(pickle.loads(sent).text_keys(everything, 0), tokenised.text_keys(everything, 0))
