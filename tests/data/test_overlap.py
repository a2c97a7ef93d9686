"""Training queries that are also test queries.

- They are found whatever their case and spacing, and nothing else is.
- Dropping takes out exactly those rows, changes the fingerprint of those datasets and leaves the others alone.
- Refusing names the dataset and shows examples; a dataset of which nothing is left is an error.
"""

from __future__ import annotations

import pytest

from mixfluence.data.mixture import EXAMPLES, Mixture, find_overlap, without_overlap
from mixfluence.data.rows import Row, RowSet, fingerprint, rows_in_memory
from mixfluence.errors import DataError


def row_set(*anchors: str) -> RowSet:
    dataset = rows_in_memory(Row(anchor, f"answer to {anchor}") for anchor in anchors)
    return RowSet(dataset, fingerprint(dataset), ("a note",))


@pytest.fixture
def mixture() -> Mixture:
    return Mixture({"faq": row_set("What is  IR?", "who am i", "WHAT IS IR?"), "clean": row_set("what is", "ir?")})


TEST_QUERIES = {"trec": ["what is\tir? ", "unasked"], "beir": ["answer to ir?"]}


def test_overlap_ignores_case_and_spacing_and_nothing_else(mixture: Mixture) -> None:
    (overlap,) = find_overlap(mixture, TEST_QUERIES["trec"])
    assert (overlap.dataset, overlap.rows) == ("faq", (0, 2))
    assert overlap.anchors == ("What is  IR?", "WHAT IS IR?")
    assert find_overlap(mixture, ["what isir?", "what", ""]) == []


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
    with pytest.raises(DataError, match=r"^faq: 2 training rows .*\('What is  IR\?'; 'WHAT IS IR\?'\)$"):
        without_overlap(mixture, TEST_QUERIES, "refuse")
    many = Mixture({"many": row_set(*(f"query {number}" for number in range(50)), "own")})
    with pytest.raises(DataError, match="many: 50 training rows") as caught:
        without_overlap(many, {"test": [f"query {number}" for number in range(50)]}, "refuse")
    assert str(caught.value).count("'query") == EXAMPLES


def test_refuse_lets_a_clean_mixture_pass(mixture: Mixture) -> None:
    kept, overlaps = without_overlap(mixture, {"test": ["something else"]}, "refuse")
    assert overlaps == []
    assert kept.fingerprints == mixture.fingerprints


def test_a_dataset_of_which_nothing_is_left_is_an_error(mixture: Mixture) -> None:
    with pytest.raises(DataError, match="clean: "):
        without_overlap(mixture, {"test": ["What is", "IR?"]}, "drop")
