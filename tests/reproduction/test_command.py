"""`python -m reproduction` with real runs.

- Trained and untrained cells run, a failing one is reported, tables and notes are written; nothing is run twice.
- `mixfluence compare` reads both kinds of cells.
- Counts that differ from the published ones reach the record and the tables.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mixfluence.cli import app as mixfluence
from mixfluence.runs import RECORD_FILE
from reproduction.__main__ import app, main
from reproduction.schema import SETTINGS, load_setting, load_study
from tests.forked import forked_jobs
from tests.reproduction.conftest import WriteStudy


def reproduce(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
def test_a_study_runs_once_and_its_tables_are_written(
    write_study: WriteStudy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published = ["test={big: {published: {queries: 30, passages: 91}}, small: {}}"]
    twin = load_study(str(write_study())).settings["twin"].model_dump() | {"changes": published}
    rows = [
        {"label": "wrong", "sampler": "static", "changes": ["model.name=nowhere"], "seeds": 1},
        {"label": "mix", "sampler": "static", "seeds": 1, "resampled": True},
        {"label": "zero-shot", "reference": "zero-shot"},
        {"label": "bm25", "reference": "bm25"},
    ]
    path = str(write_study(rows=rows, settings={"twin": twin}))
    words = (path, "--setting", "twin", "--data", str(tmp_path / "elsewhere"), "-o", str(tmp_path / "out"))
    planned = reproduce(*words, "--dry-run")
    assert planned.exit_code == 0
    assert planned.stdout.count("(new)") == 4
    assert "in 4 runs" in planned.stdout
    assert not (tmp_path / "out").exists()

    caplog.set_level(logging.INFO, logger="mixfluence")
    with forked_jobs():
        result = reproduce(*words, "--processes", "2")
    assert result.exit_code == 1
    assert "wrong/0: failed: encoder 'nowhere'" in caplog.text
    done = {file.parent.parent.name: file.stat().st_mtime_ns for file in tmp_path.rglob(RECORD_FILE)}
    assert done.keys() == {"mix", "zero-shot", "bm25"}
    drawn = json.loads((tmp_path / "out" / "mix" / "0" / RECORD_FILE).read_text(encoding="utf-8"))["datasets"]
    assert {name: facts["rows"] for name, facts in drawn.items()} == {"big": 30, "small": 15}
    text = (tmp_path / "out" / "try.md").read_text(encoding="utf-8")
    assert "Failed: wrong/0" in text
    assert "test big: 90 passages, but 91 were published" in text
    assert "| zero-shot |" in text
    assert "zero-shot" in result.stdout
    facts = json.loads((tmp_path / "out" / "try.json").read_text(encoding="utf-8"))
    assert {row["label"]: bool(row["hours"]) for row in facts["rows"]} == {
        "mix": True,
        "zero-shot": False,
        "bm25": False,
    }

    folders = [str(tmp_path / "out" / name / "0") for name in ("mix", "zero-shot")]
    compared = CliRunner().invoke(mixfluence, ["compare", *folders, "--format", "markdown"])
    assert compared.exit_code == 0
    shown = next(line for line in compared.stdout.splitlines() if "zero-shot" in line)
    zero_shot = next(row for row in facts["rows"] if row["label"] == "zero-shot")
    assert f"{zero_shot['scores']['big']['mean']:.1f}" in shown

    write_study(rows=rows[1:], settings={"twin": twin})
    again = reproduce(*words)
    assert again.exit_code == 0
    assert "runs to do: 0, already finished: 3" in caplog.text
    assert {file.parent.parent.name: file.stat().st_mtime_ns for file in tmp_path.rglob(RECORD_FILE)} == done


def test_studies_are_listed_and_missing_data_is_one_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listed = reproduce()
    assert listed.exit_code == 0
    assert "start-fever" in listed.stdout
    assert "(paper, twin, twin-kd)" in listed.stdout
    monkeypatch.setattr("sys.argv", ["reproduction", "reptile", "--setting", "twin"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "data/english/socode and 6 more; --data" in caplog.text


def test_the_papers_second_and_third_settings_have_eight_gpus() -> None:
    several = {path.stem: load_setting(path.stem).gpus for path in SETTINGS.glob("*.yaml")}
    assert {name: gpus for name, gpus in several.items() if gpus > 1} == {"st32": 8, "mldr13": 8}


def test_only_public_modules_are_imported() -> None:
    modules = ("adapt", "evaluation.significance", "recipe", "recipe_yaml", "runs", "sweep")
    public = {"mixfluence", *(f"mixfluence.{name}" for name in modules)}
    for path in SETTINGS.parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"^\s*(?:from|import) (mixfluence\S*)", text, re.MULTILINE))
        assert found <= public, path
