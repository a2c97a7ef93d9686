"""Docstrings of installed libraries: what becomes a row, and how a target is split."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from mixfluence.data import pydocs
from mixfluence.data.pydocs import LIBRARIES
from mixfluence.errors import DataError, RecipeError
from tests.data.readers import read_pydocs_rows, read_pydocs_task

pytestmark = pytest.mark.slow  # they parse whole libraries

PARTS = ("train", "dev", "test")
BODY = "one two three four five six seven eight nine ten eleven twelve"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pydocs")


@pytest.fixture(autouse=True)
def _parse_once(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXFLUENCE_CACHE", str(shared_cache))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for numpy and can be filled with any source."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.setattr(pydocs, "_locate", lambda library: (folder, "1.0"))
    return folder


def document(path: Path, *docstrings: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(f"def f{i}():\n    '''{text}'''" for i, text in enumerate(docstrings)))


def test_every_library_has_hundreds_of_docstrings() -> None:
    assert len(LIBRARIES) == 7
    for library in LIBRARIES:
        folder, _ = pydocs._locate(library)
        assert len(list(islice(pydocs._extract_rows(folder), 300))) == 300, library


def test_reading_twice_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fingerprints = set()
    for cache in ("first", "second"):
        monkeypatch.setenv("MIXFLUENCE_CACHE", str(tmp_path / cache))
        fingerprints |= {read_pydocs_rows("numpy", split).fingerprint for split in PARTS}
    assert len(fingerprints) == len(PARTS)


def test_the_parts_of_a_target_are_disjoint_and_complete() -> None:
    everything = read_pydocs_rows("numpy", "all").rows["anchor"]
    parts = {split: list(read_pydocs_rows("numpy", split).rows["anchor"]) for split in PARTS}
    assert len(parts["train"]) == 150
    assert len(parts["dev"]) == 250
    assert sorted(text for part in parts.values() for text in part) == sorted(everything)
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("split", ["all", "dev", "test"])
def test_queries_of_a_split_search_the_whole_library(split: str) -> None:
    task = read_pydocs_task("numpy", split, name="numpy docs")
    rows = read_pydocs_rows("numpy", split).rows
    bodies = dict(zip(task.doc_ids, task.docs, strict=True))
    assert task.name == "numpy docs"
    assert len(task.docs) == len(read_pydocs_rows("numpy", "all"))
    assert list(task.queries) == list(rows["anchor"])
    assert all(task.qrels[query] == {query.removeprefix("q-"): 1} for query in task.query_ids)
    assert [bodies[query.removeprefix("q-")] for query in task.query_ids] == list(rows["positive"])


def test_libraries_are_not_imported() -> None:
    code = (
        "import sys; from mixfluence.data.pydocs import PydocsSource;"
        "PydocsSource(library='scikit-learn', split='all').read_rows(); print('sklearn' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"


def test_summary_and_body_become_single_lines(package: Path) -> None:
    document(package / "a.py", f"Add two\n    numbers.\n\n    Notes\n    -----\n    {BODY}\n")
    row = read_pydocs_rows("numpy", "all").rows[0]
    assert (row["anchor"], row["positive"]) == ("Add two numbers.", f"Notes {BODY}")


def test_a_long_body_is_cut_between_words(package: Path) -> None:
    document(package / "a.py", "Say it again.\n\n" + "again " * 500)
    body = read_pydocs_rows("numpy", "all").rows[0]["positive"]
    assert 990 < len(body) <= 1000
    assert set(body.split()) == {"again"}


def test_texts_that_teach_nothing_are_left_out(package: Path) -> None:
    document(
        package / "a.py",
        f"Keep this one.\n\n{BODY}",
        f"Keep this one.\n\n{BODY} thirteen",
        f"Another summary here.\n\n{BODY}",
        f"Too short.\n\n{BODY} fourteen",
        "The body is too short.\n\nreally",
        f"{'long ' * 41}\n\n{BODY} fifteen",
        "No body at all.",
    )
    document(package / "tests" / "b.py", f"Lives in a test.\n\n{BODY} sixteen")
    (package / "c.py").write_text("def broken(:")
    assert list(read_pydocs_rows("numpy", "all").rows["anchor"]) == ["Keep this one."]


def test_methods_and_classes_count(package: Path) -> None:
    (package / "a.py").write_text(
        f"class A:\n  '''Hold some things.\n\n  {BODY} a'''\n"
        f"  async def f(self):\n    '''Drop some things.\n\n    {BODY} b'''\n"
    )
    assert list(read_pydocs_rows("numpy", "all").rows["anchor"]) == ["Hold some things.", "Drop some things."]


def test_a_small_library_is_no_target(package: Path) -> None:
    document(package / "a.py", f"Only one item.\n\n{BODY}")
    with pytest.raises(DataError, match=r"numpy: 1 docstrings .* 600"):
        read_pydocs_rows("numpy", "dev")


def test_a_misspelt_library_is_named_with_its_neighbour() -> None:
    with pytest.raises(DataError, match=r"'scikitlearn'.*'scikit-learn'"):
        read_pydocs_rows("scikitlearn", "all")


def test_a_library_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydocs, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scipy"):
        read_pydocs_rows("scipy", "all")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"split: .*'validation'"):
        read_pydocs_rows("numpy", "validation")
