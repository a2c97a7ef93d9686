"""The pool of training datasets.

- Order and sizes are kept, whether datasets come as a mapping or as pairs.
- An empty pool or dataset, a bad or repeated name and a missing column are errors that name the dataset.
- Any `datasets.Dataset` is taken by position; equal rows have equal fingerprints however they are stored.
- Rows that have the right shape already are taken as they are.
"""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row, fingerprint, rows_in_memory
from mixfluence.errors import DataError
from tests.conftest import row_set

RECORDS = {"query": ["q0", "q1", "q2"], "answer": ["a0", "a1", "a2"], "other": ["n0", "n1", "n2"]}


def test_order_and_sizes_are_kept() -> None:
    one, two = row_set(Row("q", "p")), row_set(Row("q", "p"), Row("r", "s"))
    for mixture in (Mixture({"z": two, "a": one}), Mixture([("z", two), ("a", one)])):
        assert list(mixture) == list(mixture.sizes) == list(mixture.fingerprints) == ["z", "a"]
        assert list(mixture.sizes.values()) == [2, 1]
        assert mixture["z"] is two


@pytest.mark.parametrize(
    ("datasets", "named"),
    [
        ([], "at least one dataset"),
        ([("tiny", Dataset.from_dict({"q": [], "p": []}))], "tiny: "),
        ([("tiny", row_set())], "tiny: the dataset is empty"),
        ([("same", row_set(Row("q", "p"))), ("same", row_set(Row("r", "s")))], "'same'"),
        ([("  ", row_set(Row("q", "p")))], "'  '"),
        ([(7, row_set(Row("q", "p")))], "7"),
        ([("lone", Dataset.from_dict({"query": ["q"]}))], "lone: row 1: .*'query'"),
        ([("lone", Dataset.from_dict({"query": ["q"], "label": [1]}))], "lone: row 1: .*'label'"),
        ([("odd", Dataset.from_dict({"q": ["q"], "p": [3]}))], "odd: row 1: .*'p'"),
        ([("blank", Dataset.from_dict({"q": ["q", " "], "p": ["", "p"]}))], "blank: .*2 of 2 rows"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_name(datasets: list[tuple[Any, Any]], named: str) -> None:
    with pytest.raises(DataError, match=named):
        Mixture(datasets)


def test_any_dataset_is_taken_by_position() -> None:
    rows = Mixture({"plain": Dataset.from_dict(RECORDS)})["plain"].rows
    assert [Row(**row) for row in rows] == [Row(f"q{i}", f"a{i}", [f"n{i}"], []) for i in range(3)]


def test_equal_rows_have_equal_fingerprints_however_they_are_stored() -> None:
    dataset = Dataset.from_dict(RECORDS)
    longer = Dataset.from_dict({name: ["x", *texts, "y"] for name, texts in RECORDS.items()})
    same = [dataset, longer.select([1, 2, 3]), dataset.select([2, 0, 1]).select([1, 2, 0])]
    other = [dataset.select([2, 0, 1]), longer, dataset.select_columns(["query", "answer"])]
    converted = row_set(*(Row(f"q{i}", f"a{i}", [f"n{i}"]) for i in range(3)))
    assert {Mixture({"d": each}).fingerprints["d"] for each in same} == {converted.fingerprint}
    assert converted.fingerprint not in {Mixture({"d": each}).fingerprints["d"] for each in other}


def test_the_fingerprint_tells_texts_in_one_field_from_texts_in_two() -> None:
    fingerprints = {
        row_set(Row("ab", "c")).fingerprint,
        row_set(Row("a", "bc")).fingerprint,
        row_set(Row("ab", "c", ["d", "e"])).fingerprint,
        row_set(Row("ab", "c", ["d"]), Row("e", "c")).fingerprint,
        row_set(Row("ab", "c", ["d", "e"], [1, 2, 3])).fingerprint,
    }
    assert len(fingerprints) == 5


def test_rows_of_the_right_shape_are_taken_as_they_are() -> None:
    rows = rows_in_memory([Row("q", "p", ["n"], [0.5, 0.25])])
    taken = Mixture({"d": rows})["d"]
    assert taken.rows is rows
    assert taken.fingerprint == fingerprint(rows)


def test_remarks_name_the_dataset_they_are_about() -> None:
    labelled = Dataset.from_dict({"q": ["q"], "p": ["p"], "label": [1]})
    mixture = Mixture({"first": labelled, "second": labelled})
    for name, dataset in mixture.items():
        assert dataset.notes == (f"{name}: ignored the columns 'label'",)
