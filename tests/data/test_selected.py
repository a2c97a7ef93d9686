"""Rows cut from tokenised datasets.

- They read like the same rows tokenised as a dataset of their own: ids, keys, scores, borrowed negatives, facts.
- Only the dataset they were cut from is tokenised, once, whatever is cut from it and how often.
- Cuts of one dataset share what is open of it, and a loader worker is sent numbers of rows and not ids.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from mixfluence.data.cache import cache_root
from mixfluence.data.rows import Row, RowSet, Subset, fingerprint
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.data.tokens import SelectedRows, TokenisedRows, TokenTable
from tests.conftest import row_set

MakeModel = Callable[[], SentenceTransformer]
WHOLE = row_set(
    *(Row(f"w{i}", f"w{i % 5} w1", [f"w{i + 9}"] * (i % 3)) for i in range(9)),
    *(Row(f"w{i % 4} w2", f"w{i % 5} w1") for i in range(7)),
    *(Row("w1", "w2", ["w3"], [0.5, 0.25]), Row(" ", "w1 w1")),
    Row("w5", " ", ["w6", "w7"], [float("nan"), 0.5, 1.0]),
)


def cut(places: set[int]) -> RowSet:
    subset = Subset(WHOLE, np.array(sorted(places), np.int64))
    rows = WHOLE.rows.select(subset.places)
    return RowSet(rows, fingerprint(rows), subset=subset)


def read(table: TokenTable, numbers: np.ndarray) -> list[list[int]]:
    return [ids.tolist() for ids in table.token_ids(numbers)]


def assert_alike(found: TokenisedRows, expected: TokenisedRows, rows: np.ndarray) -> None:
    for fact in ("distinct_positives", "largest_batch", "least_negatives", "most_negatives", "has_scores"):
        assert getattr(found, fact) == getattr(expected, fact)
    assert len(found) == len(expected)
    assert found.queries.layout == expected.queries.layout
    assert read(found.queries, found.anchors[rows]) == read(expected.queries, expected.anchors[rows])
    for negatives in (0, 2):
        np.testing.assert_array_equal(found.text_keys(rows, negatives), expected.text_keys(rows, negatives))
        (passages, scores), (own, own_scores) = (each.candidates(rows, negatives) for each in (found, expected))
        np.testing.assert_array_equal(scores, own_scores)
        for column in range(own.shape[1]):
            assert read(found.documents, passages[:, column]) == read(expected.documents, own[:, column])


def folders() -> set[Path]:
    return set((cache_root() / "tokens").glob("*"))


def test_a_cut_reads_like_a_dataset_of_its_own(make_static: MakeModel) -> None:
    tokeniser, prompts = Tokeniser(make_static()), Prompts("w9 ", "w8 ")

    @settings(max_examples=30)
    @given(st.sets(st.integers(0, len(WHOLE) - 1), min_size=1), st.integers(0, 99))
    def check(places: set[int], seed: int) -> None:
        rows = cut(places)
        found = tokenise(rows, tokeniser, prompts)
        expected = tokenise(RowSet(rows.rows, rows.fingerprint), tokeniser, prompts)
        assert isinstance(found, SelectedRows)
        assert type(expected) is TokenisedRows
        order = np.random.default_rng(seed).permutation(len(rows))
        for batch in (order, order[:3], order[:1]):
            assert_alike(found, expected, batch)
        assert_alike(pickle.loads(pickle.dumps(found)), expected, order)
        assert found.text_keys(order[:0], 1).shape == (0, 3)

    check()


def test_only_the_dataset_is_tokenised_and_once(make_static: MakeModel) -> None:
    tokeniser = Tokeniser(make_static())
    done: list[int] = []
    one = tokenise(cut({1, 3, 11}), tokeniser, Prompts(), done.append)
    assert done == [19], "all rows of the dataset that something was cut from"
    (folder,) = folders()
    other = tokenise(cut({0, 11, 14, 15}), tokeniser, Prompts(), done.append)
    assert (folders(), len(done)) == ({folder}, 1)
    assert (len(one), len(other)) == (3, 4)
    tokenise(WHOLE, tokeniser, Prompts())
    assert folders() == {folder}, "a run on the dataset itself finds the same ids"


def test_cuts_share_what_is_open_and_let_go_of_it(make_static: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    start = TokenisedRows.__init__

    def noting(self: TokenisedRows, folder: Path) -> None:
        opened.append(folder)
        start(self, folder)

    monkeypatch.setattr(TokenisedRows, "__init__", noting)
    tokeniser = Tokeniser(make_static())
    cuts = [tokenise(cut({row, row + 9}), tokeniser, Prompts()) for row in range(5)]
    assert len(opened) == 1
    sent = pickle.dumps(cuts)
    assert len(sent) < 5_000
    assert len(pickle.loads(sent)) == 5
    del cuts
    tokenise(cut({1}), tokeniser, Prompts())
    assert len(opened) == 1 + 1 + 1


def test_other_prompts_have_other_ids(make_static: MakeModel) -> None:
    tokeniser = Tokeniser(make_static())
    plain, prompted = (tokenise(cut({4}), tokeniser, Prompts(prompt)) for prompt in ("", "w9 "))
    assert read(prompted.queries, prompted.anchors) == [[10, *read(plain.queries, plain.anchors)[0]]]
