"""Files of per-query scores."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixfluence.errors import DataError
from mixfluence.evaluation import MEASURES, Evaluation, read_evaluation, write_evaluation


def evaluation(dataset: str) -> Evaluation:
    per_query = {query: {measure: (i + 1) / 7 for measure in MEASURES} for i, query in enumerate(["q\n1", "é", ""])}
    return Evaluation(dataset, per_query, removed_identical=2, seconds={"encode": 1.0})


def assert_round_trip(dataset: str, folder: Path) -> None:
    written = evaluation(dataset)
    path = write_evaluation(written, folder)
    assert path.parent == folder
    assert list(folder.iterdir()) == [path]
    assert read_evaluation(path) == Evaluation(dataset, written.per_query)


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
    ("content", "problem"),
    [
        ("", "holds no queries"),
        ("{", ":1: not a line"),
        ('{"query_id": "q"}\n', "ndcg@10"),
        ("[1]\n", ":1: not a line"),
    ],
)
def test_damaged_files_are_named(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        read_evaluation(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_evaluation(tmp_path / "nq.jsonl")
