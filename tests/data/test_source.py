"""Lines and JSON lines, whole and damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mixfluence.data.source import find_file, note_dropped, read_lines, read_records
from mixfluence.errors import DataError


@pytest.mark.parametrize("name", ["file.txt", "file.txt.gz"])
def test_lines_of_plain_and_gzipped_files_are_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    content = "\ufeffpremière\r\n\r\nlast".encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(read_lines(path)) == [(f"{path}:1", "première"), (f"{path}:3", "last")]


def test_separators_that_are_no_line_ends_stay_in_the_text(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("one\u2028still one\x0cstill\n", encoding="utf-8")
    assert list(read_lines(path)) == [(f"{path}:1", "one\u2028still one\x0cstill")]


def test_invalid_utf8_names_the_line_and_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(DataError, match=r"file\.txt:2: .*0xff in position 4"):
        list(read_lines(path))


def test_truncated_gzip_says_after_which_line(tmp_path: Path) -> None:
    path = tmp_path / "file.txt.gz"
    lines = "".join(f"{number} {'x' * 50}\n" for number in range(5000))
    path.write_bytes(gzip.compress(lines.encode(), compresslevel=0)[:-60_000])
    read: list[tuple[str, str]] = []
    with pytest.raises(DataError, match="damaged or truncated") as caught:
        read.extend(read_lines(path))
    assert len(read) > 1000
    assert f"after line {len(read)} " in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"not gzip at all", gzip.compress(b"x" * 1000, mtime=0)[:-10] + b"0123456789"],
    ids=["not gzip", "overwritten"],
)
def test_a_file_that_is_not_gzip_or_was_overwritten_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.txt.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"file\.txt\.gz: "):
        list(read_lines(path))


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path / "absent.gz", tmp_path):
        with pytest.raises(DataError, match=f"{path.name}: "):
            list(read_lines(path))


def test_jsonl_skips_blank_lines_and_keeps_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text('{"a": 1}\n\n["b"]\n  \n\n')
    assert list(read_records(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", ["b"])]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": }', r"not valid JSON \(Expecting value: .*column 7"),
        ("[" * 100_000, ""),
        ("9" * 5000, ""),
        (json.dumps(["a", "\ud83d"]), ""),
    ],
    ids=["malformed", "too deep", "too many digits", "lone surrogate"],
)
def test_bad_json_names_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(f"[]\n{line}\n")
    with pytest.raises(DataError, match=rf"file\.jsonl:2: .*{reason}"):
        list(read_records(path))


def test_escaped_characters_outside_the_first_plane_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps("🎈"))
    assert list(read_records(path)) == [(f"{path}:1", "🎈")]


def test_find_file_prefers_the_plain_file_and_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").touch()
    assert find_file(tmp_path, "a.txt").name == "a.txt.gz"
    (tmp_path / "a.txt").touch()
    assert find_file(tmp_path, "a.txt").name == "a.txt"
    with pytest.raises(DataError, match=r"b\.txt"):
        find_file(tmp_path, "b.txt")
    with pytest.raises(DataError, match="nowhere: "):
        find_file(tmp_path / "nowhere", "b.txt")


def test_what_is_dropped_is_noted_up_to_the_limit_and_refused_above_it() -> None:
    notes: list[str] = []
    things = [f"thing {number}" for number in range(1, 7)]
    note_dropped(notes, "here", "things", [], 100, limit=0.05)
    assert notes == []
    note_dropped(notes, "here", "things", things[:5], 100, limit=0.05)
    assert notes == ["here: left out 5 of 100 things, such as thing 1, thing 2, thing 3, thing 4, thing 5"]
    with pytest.raises(DataError, match=r"here: found 6 of 100 things, such as thing 1.*at most 5%") as error:
        note_dropped(notes, "here", "things", things, 100, limit=0.05)
    assert "thing 6" not in str(error.value)
