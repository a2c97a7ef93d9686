"""Descriptions of Debian's packages, from small files of the shape that apt keeps.

- The short description asks for the long one; paragraphs are joined, and long ones truncated at a space.
- A package is in the same split in every language, and each split has its share.
- Packages that begin alike are kept once; the corpus has the passages of all splits.
- Files may be packed and named as apt names them; a missing language and a damaged file are named.
- Without a folder apt-get fetches the file of one language, once.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mixfluence.data.debdocs import DebdocsSource
from mixfluence.errors import DataError, RecipeError

LONG = "Ein Text, der lang genug ist, um als Passage zu taugen, Nummer"


def stanza(name: str, language: str, short: str, *lines: str) -> str:
    return "\n".join([f"Package: {name}", "Description-md5: 0", f"Description-{language}: {short}", *lines, "", ""])


def write(folder: Path, language: str, packages: int = 200) -> Path:
    texts = [stanza(f"p{i}", language, f"{language} short {i}", f" {language} {LONG} {i}.") for i in range(packages)]
    path = folder / f"Translation-{language}"
    path.write_text("".join(texts), encoding="utf-8")
    return path


def read(folder: Path | None, language: str = "de", split: Any = "train") -> list[tuple[str, str]]:
    rows = DebdocsSource(path=folder, language=language, split=split).read_rows().rows
    return list(zip(rows["anchor"], rows["positive"], strict=True))


def test_the_short_description_asks_for_the_long_one(tmp_path: Path) -> None:
    text = stanza(
        "p1", "de", "Kurz  gesagt", " Ein erster Absatz über zwei", "  Zeilen.", " .", " Ein zweiter Absatz."
    )
    text += stanza("p2", "de", "Zu kurz", " Nichts.") + stanza("p3", "en", "English", " Another language, not read.")
    text += stanza("p5", "de", "Sehr lang", f" {'Wort ' * 400}")
    (tmp_path / "Translation-de").write_text(text, encoding="utf-8")
    found = {row for split in ("train", "dev", "test") for row in read_or_none(tmp_path, split)}
    assert ("Kurz gesagt", "Ein erster Absatz über zwei Zeilen. Ein zweiter Absatz.") in found
    assert {short for short, _ in found} == {"Kurz gesagt", "Sehr lang"}
    assert {len(long) for short, long in found if short == "Sehr lang"} == {999}


def read_or_none(folder: Path, split: str) -> list[tuple[str, str]]:
    try:
        return read(folder, "de", split)
    except DataError:  # a split without packages
        return []


def test_a_package_is_in_the_same_split_in_every_language(tmp_path: Path) -> None:
    numbers = {}
    for language in "de", "pt_BR":
        write(tmp_path, language)
        for split in "train", "dev", "test":
            numbers[language, split] = {short.split()[-1] for short, _ in read(tmp_path, language, split)}
    for split in "train", "dev", "test":
        assert numbers["de", split] == numbers["pt_BR", split]
    parts = [numbers["de", split] for split in ("train", "dev", "test")]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 200
    assert [len(part) > least for part, least in zip(parts, (140, 8, 8), strict=True)] == [True] * 3


def test_packages_that_begin_alike_are_kept_once(tmp_path: Path) -> None:
    path = write(tmp_path, "de")
    before = [row for split in ("train", "dev", "test") for row in read(tmp_path, "de", split)]
    twins = [stanza(f"p{i}-data", "de", f"data {i}", f" de {LONG} {i}.", " .", " Daten.") for i in range(200)]
    path.write_text(path.read_text(encoding="utf-8") + "".join(twins), encoding="utf-8")
    assert [row for split in ("train", "dev", "test") for row in read(tmp_path, "de", split)] == before


def test_the_corpus_has_the_passages_of_all_splits(tmp_path: Path) -> None:
    write(tmp_path, "de")
    task = DebdocsSource(path=tmp_path, language="de", split="test").read_task("de")
    assert len(task.docs) == 200
    texts = dict(zip(task.doc_ids, task.docs, strict=True))
    asked = dict(zip(task.query_ids, task.queries, strict=True))
    answers = [(asked[query], texts[next(iter(found))]) for query, found in task.qrels.items()]
    assert answers == read(tmp_path, "de", "test")


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_packed_files_are_read_under_apts_names(suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    plain = write(tmp_path, "pt_BR")
    expected = read(tmp_path, "pt_BR")
    content = pack(plain.read_bytes())
    plain.unlink()
    path = tmp_path / f"mirror.example_debian_dists_bookworm_main_i18n_Translation-pt%5fBR{suffix}"
    path.write_bytes(content)
    assert read(tmp_path, "pt_BR") == expected
    path.write_bytes(content[:-20])
    with pytest.raises(DataError, match=path.name):
        read(tmp_path, "pt_BR")


def test_a_language_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path, "de", 20)
    with pytest.raises(DataError, match=r"Translation-fr; languages found: de$"):
        read(tmp_path, "fr")
    with pytest.raises(RecipeError, match="language"):
        read(tmp_path, "../de")
    (tmp_path / "Translation-it.lz4").touch()
    with pytest.raises(DataError, match=r"Translation-it\.lz4: .*apt-helper"):
        read(tmp_path, "it")


@pytest.mark.parametrize("text", ["Package: a\nno field\n", "Description-de: without a package\n"])
def test_a_file_of_another_shape_is_named_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "Translation-de").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"Translation-de:{text.count(chr(10))}: expected"):
        read(tmp_path, "de")


# Stands for apt-get: keeps what it was asked, and writes the file of a language to the folder of lists.
CLIENT = """#!/bin/sh
echo "$@" >> {log}
for word in "$@"; do case $word in
  Dir::State::Lists=*) lists=${{word#*=}} ;;
  Acquire::Languages=*) language=${{word#*=}} ;;
esac; done
[ -f {files}/Translation-$language ] && cp {files}/Translation-$language $lists/host_Translation-$language
exit 0
"""


def test_without_a_folder_the_client_of_apt_fetches_a_language_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "bin", "files":
        (tmp_path / name).mkdir()
    write(tmp_path / "files", "de")
    log, client = tmp_path / "log", tmp_path / "bin" / "apt-get"
    client.write_text(CLIENT.format(log=log, files=tmp_path / "files"), encoding="utf-8")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert read(None) == read(tmp_path / "files")
    assert read(None, "de", "dev") == read(tmp_path / "files", "de", "dev")
    assert len(log.read_text(encoding="utf-8").splitlines()) == 1
    with pytest.raises(DataError, match="Translation-fr"):
        read(None, "fr")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="apt-get"):
        read(None, "it")
