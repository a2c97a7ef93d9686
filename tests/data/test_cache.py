"""The cache on disk: damage is noticed, names do not collide, content decides, and its size has a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.data import cache
from mixfluence.data.cache import cache_root, cached, entries
from mixfluence.data.rows import Row
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.errors import RecipeError
from mixfluence.files import replacing
from tests.conftest import row_set
from tests.data.readers import read_pairs

ROWS = [Row(f"w{i}", f"w{i + 20} w3", ["w5"]) for i in range(8)]


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_verified", set())


def flip(file: Path, place: int) -> None:
    # As a copy: what is mapped into memory would change under its reader.
    content = bytearray(file.read_bytes())
    content[place] ^= 0x80
    file.unlink()
    file.write_bytes(content)


@pytest.mark.parametrize("damage", ["zeroed", "flipped"])
@pytest.mark.parametrize("name", ["query_ids.bin", "document_ids.bin", "anchor_keys.npy", "passages.npy"])
def test_damaged_token_ids_are_noticed_and_made_again(
    name: str, damage: str, make_static: Callable[[], SentenceTransformer], caplog: pytest.LogCaptureFixture
) -> None:
    tokeniser = Tokeniser(make_static())
    tokenise(row_set(*ROWS), tokeniser, Prompts())
    (file,) = cache_root().glob(f"tokens/*/{name}")
    good = file.read_bytes()
    if damage == "zeroed":
        file.unlink()
        file.write_bytes(bytes(len(good)))
    else:
        flip(file, len(good) - 1)
    cache._verified.clear()
    tokenise(row_set(*ROWS), tokeniser, Prompts())
    assert file.read_bytes() == good
    assert f"damaged, building it again ({name}" in caplog.text


def test_a_flipped_bit_in_converted_rows_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('["the anchor", "the positive"]\n', encoding="utf-8")
    read_pairs(tmp_path / "a.jsonl")
    (file,) = cache_root().glob("rows/*/rows.arrow")
    flip(file, file.read_bytes().index(b"anchor", 600))
    cache._verified.clear()
    assert read_pairs(tmp_path / "a.jsonl").rows[0]["anchor"] == "the anchor"


def test_an_edit_that_keeps_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('["one", "two"]\n', encoding="utf-8")
    before = path.stat()
    assert read_pairs(path).rows[0]["anchor"] == "one"
    path.write_text('["uno", "two"]\n', encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_pairs(path).rows[0]["anchor"] == "uno"


def test_temporary_names_do_not_depend_on_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as in two containers
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as other:
        assert one != other
        one.write_text("1")
        other.write_text("2")
    folders: list[Path] = []

    def build(folder: Path) -> None:
        folders.append(folder)
        (folder / "file").touch()

    for key in ("a", "b"):
        cached("rows", key, lambda folder: None, build)
    assert len({folder.name for folder in folders}) == 2


def test_other_users_may_read_the_cache() -> None:
    cached("rows", "key", lambda folder: None, lambda folder: (folder / "file").touch())
    (entry,) = entries()
    mask = os.umask(0)
    os.umask(mask)
    assert entry.folder.stat().st_mode & 0o777 == 0o777 & ~mask


def test_files_are_on_disk_before_the_folder_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(cache, "sync", lambda path: synced.append(path.name))
    rename = os.rename

    def renaming(old: Path, new: Path) -> None:
        assert {"file", cache.CHECKSUMS, old.name} <= set(synced)
        rename(old, new)

    monkeypatch.setattr(os, "rename", renaming)
    cached("rows", "key", lambda folder: None, lambda folder: (folder / "file").write_text("x"))
    assert synced[-1] == "rows"


def fill(key: str, days: float) -> Path:
    cached("rows", key, lambda folder: None, lambda folder: (folder / "file").write_bytes(bytes(1_000)))
    newest = max(cache_root().glob("rows/*/checksums.json"), key=lambda path: path.stat().st_mtime)
    os.utime(newest, (time.time() - days * 86_400,) * 2)
    return newest.parent


def test_the_least_recently_used_are_deleted_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    old, older, recent = fill("a", 3), fill("b", 5), fill("c", 0.5)
    monkeypatch.setenv("MIXFLUENCE_CACHE_LIMIT", "4.0KB")
    fill("d", 0)
    assert (old.exists(), older.exists(), recent.exists()) == (True, False, True)
    monkeypatch.setenv("MIXFLUENCE_CACHE_LIMIT", "1")
    fill("e", 0)
    assert (old.exists(), recent.exists()) == (False, True), "what was used within a day may be in use"
    monkeypatch.setenv("MIXFLUENCE_CACHE_LIMIT", "much")
    with pytest.raises(RecipeError, match=r"MIXFLUENCE_CACHE_LIMIT: .*'much'"):
        fill("f", 0)


def test_the_command_lists_and_cleans() -> None:
    old, recent = fill("a", 3), fill("b", 0)

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["cache", *words])
        assert result.exit_code == 0
        return result.stdout

    shown = run()
    assert "rows" in shown
    assert str(cache_root()) in shown.replace("\n", "")
    assert old.exists()
    run("--clean", "--unused", "2")
    assert (old.exists(), recent.exists()) == (False, True)
    (cache_root() / "rows" / "left.arrow").touch()
    assert "deleted 2 entries" in run("--clean")
    assert entries() == []
