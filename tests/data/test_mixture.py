"""The mixture of training datasets, and its overlap with test queries.

- Order and sizes are kept, whether datasets come as a mapping or as pairs.
- An empty mixture or dataset, a bad or repeated name and a missing column are errors that name the dataset.
- Any `datasets.Dataset` is taken by position; equal rows have equal fingerprints however they are stored.
- Rows that have the right shape already are taken as they are.
- Training queries that are test queries are found whatever their case and spacing, and nothing else is.
- Dropping them removes exactly those rows, changes the fingerprint of their datasets and leaves the others alone.
- A dev set of which a training set has more than a few queries is told; no row is left out for it.
- Refusing names the dataset and shows examples; a dataset with no rows left is an error.
"""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from mixfluence.data.mixture import Mixture, repeated_queries, without_overlap
from mixfluence.data.rows import Row, RowSet, fingerprint
from mixfluence.data.source import EXAMPLES_SHOWN
from mixfluence.errors import DataError
from tests.conftest import row_set, rows_in_memory

RECORDS = {"query": ["q0", "q1", "q2"], "answer": ["a0", "a1", "a2"], "negative": ["n0", "n1", "n2"]}


def test_order_and_sizes_are_kept() -> None:
    one, two = row_set(Row("q", "p")), row_set(Row("q", "p"), Row("r", "s"))
    mixture = Mixture({"z": two, "a": one})
    assert list(mixture) == list(mixture.sizes) == list(mixture.fingerprints) == ["z", "a"]
    assert list(mixture.sizes.values()) == [2, 1]
    assert mixture["z"] is two


@pytest.mark.parametrize(
    ("datasets", "named"),
    [
        ({}, "at least one dataset"),
        ({"tiny": Dataset.from_dict({"q": [], "p": []})}, "tiny: "),
        ({"tiny": row_set()}, "tiny: the dataset is empty"),
        ({"  ": row_set(Row("q", "p"))}, "'  '"),
        ({7: row_set(Row("q", "p"))}, "7"),
        ({"lone": Dataset.from_dict({"query": ["q"]})}, "lone: row 1: .*'query'"),
        ({"lone": Dataset.from_dict({"query": ["q"], "label": [1]})}, "lone: row 1: .*'label'"),
        ({"odd": Dataset.from_dict({"q": ["q"], "p": [3]})}, "odd: row 1: .*'p'"),
        ({"blank": Dataset.from_dict({"query": ["q", " "], "answer": ["", "p"]})}, "blank: .*2 of 2 rows"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_name(datasets: dict[Any, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        Mixture(datasets)


def test_any_dataset_is_taken_by_the_names_of_its_columns() -> None:
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


def test_the_fingerprint_distinguishes_one_field_from_two() -> None:
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
    wide = Dataset.from_dict({"query": ["q"], "answer": ["p"], "topic": ["t"]})
    mixture = Mixture({"first": wide, "second": wide})
    for name, dataset in mixture.items():
        assert dataset.notes == (f"{name}: ignored the columns 'topic'",)


def asking(*anchors: str) -> RowSet:
    dataset = rows_in_memory(Row(anchor, f"answer to {anchor}") for anchor in anchors)
    return RowSet(dataset, fingerprint(dataset), ("a note",))


@pytest.fixture
def mixture() -> Mixture:
    return Mixture({"faq": asking("What is  IR?", "who am i", "WHAT IS IR?"), "clean": asking("what is", "ir?")})


TEST_QUERIES = {"trec": ["what is\tir? ", "unasked"], "beir": ["answer to ir?"]}


def test_overlap_ignores_case_and_spacing_and_nothing_else(mixture: Mixture) -> None:
    _, (overlap,) = without_overlap(mixture, TEST_QUERIES, "drop")
    assert (overlap.dataset, overlap.rows) == ("faq", (0, 2))
    assert overlap.anchors == ("What is  IR?", "WHAT IS IR?")
    assert without_overlap(mixture, {"other": ["what isir?", "what", ""]}, "drop")[1] == []


def test_drop_takes_out_exactly_those_rows(mixture: Mixture) -> None:
    kept, overlaps = without_overlap(mixture, TEST_QUERIES, "drop")
    assert [overlap.rows for overlap in overlaps] == [(0, 2)]
    assert list(kept) == list(mixture)
    assert list(kept["faq"].rows["anchor"]) == ["who am i"]
    assert list(kept["faq"].rows["positive"]) == ["answer to who am i"]
    assert kept["faq"].notes == ("a note",)
    assert kept["clean"] is mixture["clean"]


def test_the_fingerprint_says_which_rows_are_left(mixture: Mixture) -> None:
    queries: list[list[str]] = [[], ["what is ir?"], ["who am i"], ["who am i"]]
    found = [without_overlap(mixture, {"t": asked}, "drop")[0].fingerprints["faq"] for asked in queries]
    assert found[0] == mixture.fingerprints["faq"]
    assert len(set(found)) == 3
    assert found[2] == found[3]


def test_refuse_names_dataset_and_examples_but_not_all_of_them(mixture: Mixture) -> None:
    with pytest.raises(DataError, match=r"^faq: .*2 training rows .*\('What is  IR\?'; 'WHAT IS IR\?'\)$"):
        without_overlap(mixture, TEST_QUERIES, "refuse")
    many = Mixture({"many": asking(*(f"query {number}" for number in range(50)), "own")})
    with pytest.raises(DataError, match=r"many: .*50 training rows") as caught:
        without_overlap(many, {"test": [f"query {number}" for number in range(50)]}, "refuse")
    assert str(caught.value).count("'query") == EXAMPLES_SHOWN


def test_refuse_lets_a_clean_mixture_pass(mixture: Mixture) -> None:
    kept, overlaps = without_overlap(mixture, {"test": ["something else"]}, "refuse")
    assert overlaps == []
    assert kept.fingerprints == mixture.fingerprints


def test_a_dataset_of_which_nothing_is_left_is_an_error(mixture: Mixture) -> None:
    with pytest.raises(DataError, match="clean: "):
        without_overlap(mixture, {"test": ["What is", "IR?"]}, "drop")


def test_dev_queries_in_training_data_are_told() -> None:
    rows = [Row(f"query {i}", f"p{i}") for i in range(40)]
    mixture = Mixture({"same": row_set(*rows), "other": row_set(*(Row(f"other {i}", "p") for i in range(40)))})
    for shared, told in {0: False, 1: False, 3: True, 20: True}.items():
        seen = [Row(f" QUERY  {i}", "another passage") for i in range(shared)]
        dev = Mixture({"own": row_set(*seen, *(Row(f"new {i}", "p") for i in range(20 - shared)))})
        sentences = list(repeated_queries(mixture, dev))
        assert len(sentences) == told
        assert all(word in sentence for sentence in sentences for word in ("own", "same", f"{shared} of its 20"))
    assert not list(repeated_queries(mixture, {}))
