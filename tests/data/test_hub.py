"""Hub datasets, through local folders because tests have no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mixfluence.errors import DataError
from tests.data.readers import read_hub


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both libraries read HF_HUB_OFFLINE and the cache folder when they are imported, which has happened.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def write(folder: Path, columns: dict[str, list[Any]]) -> str:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "train.parquet")
    return str(folder)


def test_rows_of_a_dataset_by_name_and_by_map(tmp_path: Path) -> None:
    name = write(tmp_path / "set", {"query": ["q", "r"], "answer": ["a", "b"], "topic": [0.1, 0.2]})
    rows = read_hub(name, "train")
    assert (list(rows.rows["anchor"]), list(rows.rows["positive"])) == (["q", "r"], ["a", "b"])
    assert rows.notes == (f"{name}: ignored the columns 'topic'",)
    swapped = read_hub(name, "train", {"anchor": "answer", "positive": "query"})
    assert list(swapped.rows["anchor"]) == ["a", "b"]


def test_parts_of_a_split_do_not_share_a_conversion(tmp_path: Path) -> None:
    name = write(tmp_path / "set", {"query": ["q", "r", "s"], "answer": ["a", "b", "c"]})
    assert len(read_hub(name, "train")) == 3
    assert list(read_hub(name, "train[1:2]").rows["anchor"]) == ["r"]


def test_changed_data_is_converted_again(tmp_path: Path) -> None:
    name = write(tmp_path / "set", {"query": ["q"], "answer": ["a"]})
    assert len(read_hub(name, "train")) == 1
    write(tmp_path / "set", {"query": ["new", "r"], "answer": ["a", "b"]})
    assert list(read_hub(name, "train").rows["anchor"]) == ["new", "r"]


def test_a_wrong_column_names_the_dataset_and_the_row(tmp_path: Path) -> None:
    name = write(tmp_path / "set", {"query": ["q", "r"], "answer": ["a", "b"]})
    with pytest.raises(DataError, match=r"set: row 1: .*'quary'.*'query'"):
        read_hub(name, "train", {"anchor": "quary", "positive": "answer"})


def test_what_cannot_be_loaded_is_explained_in_one_line(tmp_path: Path) -> None:
    name = write(tmp_path / "set", {"query": ["q"], "answer": ["a"]})
    for dataset_id, split in (("nobody/nothing-at-all", "train"), (name, "absent")):
        with pytest.raises(DataError, match=f"{dataset_id}: could not be loaded") as caught:
            read_hub(dataset_id, split)
        assert "\n" not in str(caught.value)


def test_code_of_a_dataset_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(DataError, match="scripted: "):
        read_hub(str(folder), "train")
    assert not (tmp_path / "ran").exists()


def test_positives_and_negatives_can_be_limited(tmp_path: Path) -> None:
    name = write(tmp_path / "set", {"query": ["t"], "citation": [["a", "b"]], "negative": ["n"]})
    assert len(read_hub(name, "train")) == 2
    (row,) = read_hub(name, "train", per="query", negatives=0).rows
    assert (row["positive"], row["negatives"]) == ("a", [])
