"""BGE-M3's training data in its published shapes.

- A language is all its sources; each file is a part of it, short ones first.
- Lines with and without scores, with few negatives or none, and with several positives make one row each.
- What differs from the published lines is said.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.data.bge_m3 import published_sources
from mixfluence.data.mixture import Mixture, without_overlap
from mixfluence.data.tokenize import Prompts, Tokeniser, tokenise
from mixfluence.errors import DataError
from tests.data.readers import read_bge_m3


def line(number: int, negatives: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "query": f"w{number}",
        "pos": [f"w{number} w1"],
        "neg": [f"w{number} w{i + 2}" for i in range(negatives)],
    } | more


def put(path: Path, *records: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join(map(json.dumps, records)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Arabic of three sources, in three of the trees that the archive may have, and a little English."""
    root = tmp_path / "bge-m3-data"
    scored = line(0, pos_scores=[3.0], neg_scores=[1.0, -2.0])
    several = line(1, pos=["w1 w9", "w1 w8"], pos_scores=[2.0, 4.0], neg_scores=[0.5, 0.25])
    put(root / "MIRACL" / "ar" / "ar_len-0-500.jsonl", scored, several)
    put(root / "MIRACL" / "ar" / "ar_len-7000-inf.jsonl", line(2, 1, pos_scores=[1.0], neg_scores=[0.0]))
    put(root / "MIRACL" / "ar" / "ar_len-500-1000.jsonl", line(3, 0, pos_scores=[1.0], neg_scores=[]))
    put(root / "Mr.TyDi" / "arabic_len-0-500.jsonl.gz", line(4, 0), line(5, 1))
    put(root / "mldr" / "ar" / "train_len-5000-6000.jsonl", line(6), line(7, 0, neg=None))
    put(root / "NQ" / "nq_len-0-500.jsonl", line(8, prompt="ask", type="normal"))
    return tmp_path


def test_a_language_is_all_its_sources_in_parts(tree: Path) -> None:
    rows = read_bge_m3(tree, "ar")
    assert dict(rows.parts) == {
        "MIRACL/ar 0-500": 2,
        "MIRACL/ar 500-1000": 1,
        "MIRACL/ar 7000-inf": 1,
        "MLDR/ar 5000-6000": 2,
        "Mr.TyDi/arabic 0-500": 2,
    }
    assert list(rows.rows["anchor"]) == ["w0", "w1", "w3", "w2", "w6", "w7", "w4", "w5"]
    assert sum(rows.parts.values()) == len(rows)


def test_lines_of_every_shape_make_one_row(tree: Path) -> None:
    rows = {row["anchor"]: row for row in read_bge_m3(tree, "ar").rows}
    assert rows["w0"]["scores"] == [3.0, 1.0, -2.0]
    assert (rows["w1"]["positive"], rows["w1"]["scores"]) == ("w1 w9", [2.0, 0.5, 0.25])
    assert (rows["w3"]["negatives"], rows["w3"]["scores"]) == ([], [1.0])
    assert (rows["w7"]["negatives"], rows["w7"]["scores"]) == ([], [])
    assert len(rows["w2"]["negatives"]) == 1


def test_what_differs_from_the_publication_is_said(tree: Path) -> None:
    notes = read_bge_m3(tree, "ar").notes
    assert "MIRACL/ar: 4 rows, but 3,495 were published" in notes
    assert any(note.startswith("Mr.TyDi/arabic: 1 of its 1 parts") for note in notes)
    assert not any("scores" in note for note in notes if note.startswith(("MIRACL", "MLDR")))
    english = read_bge_m3(tree, "en").notes
    assert "SQuAD: 0 rows, but 87,599 were published" in english
    assert any("'prompt', 'type'" in note for note in english)


def test_complete_sources_are_not_mentioned(tmp_path: Path) -> None:
    lines = published_sources()["MIRACL/fa"].lines
    rows = [line(number, 0, pos_scores=[1.0]) for number in range(lines)]
    put(tmp_path / "MIRACL" / "fa" / "fa_len-0-500.jsonl", *rows)
    assert read_bge_m3(tmp_path, "fa").notes == ()


def test_mistakes_are_named(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'xx'.* ar, bn, de"):
        read_bge_m3(tree, "xx")
    with pytest.raises(DataError, match=r"\*_len-\*\.jsonl of MLDR/it"):
        read_bge_m3(tree, "it")
    put(tmp_path / "MLDR" / "it" / "it_len-0-500.jsonl", line(0), line(1, neg_scores=[1.0]))
    with pytest.raises(DataError, match=r"it_len-0-500\.jsonl:2: .*'pos_scores'"):
        read_bge_m3(tmp_path, "it")


def test_parts_follow_the_rows_that_are_kept(tree: Path) -> None:
    mixture, _ = without_overlap(Mixture({"ar": read_bge_m3(tree, "ar")}), {"test": ["W3", "w0"]}, "drop")
    kept = mixture["ar"]
    assert list(kept.rows["anchor"]) == ["w1", "w2", "w6", "w7", "w4", "w5"]
    assert dict(kept.parts) == {
        "MIRACL/ar 0-500": 1,
        "MIRACL/ar 7000-inf": 1,
        "MLDR/ar 5000-6000": 2,
        "Mr.TyDi/arabic 0-500": 2,
    }


def test_a_language_trains_with_short_and_empty_lists_and_some_scores(
    tree: Path, tiny_bert: SentenceTransformer
) -> None:
    rows = read_bge_m3(tree, "ar")
    tokens = tokenise(rows, Tokeniser(tiny_bert), Prompts("", ""))
    passages, scores = tokens.candidates(np.arange(len(rows)), 3)
    assert passages.shape == scores.shape == (8, 4)
    # Repeated negatives keep their scores; borrowed ones, and all of unscored rows, have none.
    np.testing.assert_array_equal(scores[0], [3.0, 1.0, -2.0, 1.0])
    np.testing.assert_array_equal(scores[2], [1.0, math.nan, math.nan, math.nan])
    assert np.isnan(scores[4:]).all()


def test_the_publication_adds_up() -> None:
    sources = published_sources()
    assert sum(source.lines for source in sources.values()) == 1_569_864
    assert len({source.language for source in sources.values()}) == 19
    only = {
        language: [n for n, s in sources.items() if s.language == language] for language in ("de", "it", "pt", "fa")
    }
    assert only == {"de": ["MLDR/de"], "it": ["MLDR/it"], "pt": ["MLDR/pt"], "fa": ["MIRACL/fa"]}
    assert not any(source.scored for name, source in sources.items() if name.startswith("MLDR"))
