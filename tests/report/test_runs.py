"""Run folders: what was written is read, damage is refused with file and line, old folders are still readable.

- A finished run reads back; a killed one reads as far as it came; a cut-off last line of a trace is dropped.
- The three kinds of record (run, stage, test) have one writer and one reader.
- Folders of version 0.1.0 are read by compare, report and status; a newer format is refused with its version.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from mixfluence import runs as module
from mixfluence.cli.runs import compare, report
from mixfluence.errors import DataError, RecipeError
from mixfluence.recipe_yaml import load_recipe
from mixfluence.report.status import read_status
from mixfluence.runs import (
    FORMAT,
    RECORD_FILE,
    TRACE_FILE,
    group_by_seed,
    read_record,
    read_run,
    read_trace,
    versions,
    write_record,
)
from tests.test_methods import SETTINGS, STAGES

OLD = Path(__file__).parent / "old-runs"
START = {"step": 0, "seconds": 0.0, "datasets": {"a": {"rows": 3}}}
LINE = {"step": 1, "seconds": 1.0, "weights": {"a": 1.0}}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def change_record(folder: Path, **facts: Any) -> None:
    record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    (folder / RECORD_FILE).write_text(json.dumps(record | facts), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("method", [*SETTINGS, "replay"])
def test_a_finished_run_reads_back(runs: Path, method: str) -> None:
    found = read_run(runs / method)
    assert found.finished
    assert found.recipe.strategy.name == method
    assert (found.record["format"], found.record["kind"], found.untrained) == (FORMAT, "run", None)
    assert list(found.scores) == list(found.recipe.test) == list(found.record["tests"])
    for name, evaluation in found.scores.items():
        assert found.record["scores"][name]["ndcg@10"] == pytest.approx(evaluation.mean("ndcg@10"))
        assert found.record["tests"][name]["queries"] == len(evaluation.per_query)
    assert set(found.weights) == set(found.recipe.train)
    assert sum(len(line.get("trained", [])) for line in found.trace) == 12
    assert list(found.stages) == STAGES.get(method, [])
    for stage in found.stages:
        record = read_record(runs / method / "stages" / stage / RECORD_FILE)
        assert (record["kind"], record["steps"]) == ("stage", found.record["stages"][stage]["steps"])


@pytest.mark.slow
def test_runs_on_the_same_test_sets_have_the_same_fingerprints(runs: Path) -> None:
    one, other = (read_run(runs / name).record["tests"] for name in ("static", "crisp"))
    assert one == other
    assert len({facts["fingerprint"] for facts in one.values()}) == 3


@pytest.mark.slow
def test_a_killed_run_reads_as_far_as_it_came(runs: Path) -> None:
    found = read_run(runs / "killed")
    assert not found.finished
    assert (found.scores, found.weights, found.hours(on_gpu=False)) == ({}, {}, {})
    assert found.trace[-1]["step"] in range(4, 8)


@pytest.mark.slow
def test_seeds_of_one_recipe_are_a_group_and_copies_are_not(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs / "static", tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "model"))
    paths = [runs / "static", copy, runs / "static-1", runs / "killed", runs / "inf-dds"]
    groups = group_by_seed([read_run(path) for path in paths])
    assert [group.labels for group in groups] == [("static", "static-1"), ("copy",), ("killed",), ("inf-dds",)]
    records = [read_run(runs / name).record for name in ("static", "static-1")]
    averages = [100 * fmean(scores["ndcg@10"] for scores in record["scores"].values()) for record in records]
    average = groups[0].average(list(records[0]["scores"]))
    assert average is not None
    assert average.values == pytest.approx(averages)
    assert average.mean == pytest.approx(fmean(averages))
    assert average.spread == pytest.approx(stdev(averages))
    spent = fmean(record["seconds"]["train"] for record in records) / 3600
    assert groups[0].hours(on_gpu=False)["training"] == pytest.approx(spent)
    assert (groups[2].hours(on_gpu=False), groups[2].average(["big"])) == ({}, None)


@pytest.mark.slow
def test_folders_of_version_0_1_0_are_read(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guided, staged = read_run(old / "inf-dds"), read_run(old / "doremi")
    assert (guided.record["kind"], guided.record["versions"]["mixfluence"]) == ("run", "0.1.0")
    assert guided.trace[-1]["step"] == 24
    assert guided.recipe.training.trainer_args == {"dataloader_num_workers": 2}
    assert guided.recipe.strategy.model_dump()["probe"]["snapshot"] == "cpu"
    assert list(staged.stages) == ["reference", "proxy"]
    assert read_record(old / "doremi" / "stages" / "proxy" / RECORD_FILE)["kind"] == "stage"
    assert read_status(old / "doremi").state == "finished"
    compare([old / "inf-dds", old / "doremi"], file=old / "table.json")
    rows = json.loads((old / "table.json").read_text(encoding="utf-8"))["rows"]
    assert [row["average"]["mean"] for row in rows] == [pytest.approx(49.1, abs=0.1), pytest.approx(43.4, abs=0.1)]
    report([old / "inf-dds", old / "doremi"], old / "page.html")
    assert "wrote" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("strategy", "readable"),
    [
        ({"name": "aioli", "focus": 1.0}, True),
        ({"name": "aioli", "focus": 0.7}, False),
        ({"name": "inf-dds", "subset": 3, "subset_by": "random"}, True),
        ({"name": "inf-dds", "subset": 3, "subset_by": "need"}, False),
        ({"name": "doge", "alignment": {"lookahead": False}}, True),
        ({"name": "inf-dds", "probe": {"name": "trial", "batch_size": 8}}, True),
        ({"name": "multidds", "alignment": {"lookahead": True}}, False),
        ({"name": "inf-dds", "rule": {"name": "mirror", "step": 0.3}}, False),
    ],
)
def test_options_that_are_gone_are_read_at_their_defaults(
    old: Path, monkeypatch: pytest.MonkeyPatch, strategy: dict[str, Any], readable: bool
) -> None:
    monkeypatch.setattr(module, "_version", lambda package: "0.2.0")
    file = old / "inf-dds" / "recipe.yaml"
    written = yaml.safe_load(file.read_text(encoding="utf-8")) | {"strategy": strategy}
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    if readable:
        assert read_run(old / "inf-dds").recipe.strategy.name == strategy["name"]
    else:
        with pytest.raises(DataError, match=r"written by mixfluence 0\.1\.0"):
            read_run(old / "inf-dds")


def test_a_run_of_version_0_1_0_is_not_resumed(old: Path) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.yaml:\d+: .*'host'"):
        load_recipe(old / "inf-dds" / "recipe.yaml", files_may_be_missing=True)


@pytest.mark.slow
def test_a_model_tested_by_version_0_1_0_is_read_without_trace_and_weights(old: Path) -> None:
    folder = old / "inf-dds"
    scores = read_run(folder).record["scores"]
    for path in (folder / TRACE_FILE, folder / "weights.json"):
        path.unlink()
    facts = {"name": "x", "reference": "zero-shot", "seed": 0, "scores": scores}
    (folder / RECORD_FILE).write_text(json.dumps(facts), encoding="utf-8")
    found = read_run(folder)
    assert (found.untrained, found.trace, found.weights, found.hours(on_gpu=True)) == ("zero-shot", [], {}, {})
    compare([folder, old / "doremi"], file=old / "table.md")
    assert "zero-shot" in (old / "table.md").read_text(encoding="utf-8")
    report([folder, old / "doremi"], old / "page.html")
    assert read_status(folder).state == "finished"


def test_records_are_written_and_read_by_kind(tmp_path: Path) -> None:
    path = tmp_path / RECORD_FILE
    write_record(path, {"reference": "bm25", "scores": {}}, kind="test")
    assert read_record(path) == {"format": FORMAT, "kind": "test", "reference": "bm25", "scores": {}}
    write_record(path, {"steps": 3, "probing": {}, "seconds": {}}, kind="stage")
    assert read_record(path)["steps"] == 3
    write_record(path, {"scores": {}})
    with pytest.raises(DataError, match=r"record\.json.*'versions' is missing"):
        read_record(path)


def test_newer_formats_and_unreadable_recipes_name_the_version_that_wrote_them(old: Path) -> None:
    change_record(old / "inf-dds", format=FORMAT + 1, versions={"mixfluence": "9.8.7"})
    with pytest.raises(DataError, match=r"record\.json: written by mixfluence 9\.8\.7"):
        read_run(old / "inf-dds")
    change_record(old / "doremi", versions={"mixfluence": "0.0.9"})
    recipe = old / "doremi" / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("seed:", "sede:"), encoding="utf-8")
    with pytest.raises(DataError, match=r"doremi: written by mixfluence 0\.0\.9.*sede"):
        read_run(old / "doremi")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{\n", ": line 1 "),
        ("[]\n", ": line 1 "),
        (json.dumps(LINE) + "\n", ": line 1 .*'datasets'"),
        (json.dumps(START) + "\n" + json.dumps({"step": 1}) + "\n", ": line 2 .*'seconds'"),
        (json.dumps(START) + "\n\n" + json.dumps(LINE)[:-9] + "\n", ": line 3 "),
    ],
)
def test_a_damaged_trace_is_refused_with_its_line(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / TRACE_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"trace\.jsonl{place}"):
        read_trace(tmp_path / TRACE_FILE)


def test_a_last_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    text = json.dumps(START) + "\n" + json.dumps(LINE)
    (tmp_path / TRACE_FILE).write_text(text, encoding="utf-8")
    assert read_trace(tmp_path / TRACE_FILE) == [START]
    (tmp_path / TRACE_FILE).write_text(text + "\n", encoding="utf-8")
    assert read_trace(tmp_path / TRACE_FILE) == [START, LINE]
    with pytest.raises(DataError, match=r"absent: cannot be read"):
        read_trace(tmp_path / "absent")


def test_what_is_not_a_run_or_incomplete_is_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: no such folder"):
        read_run(tmp_path / "absent")
    with pytest.raises(DataError, match=r"recipe\.yaml; it contains runs: .*doremi, .*inf-dds$"):
        read_run(old)
    with pytest.raises(DataError, match=r"it contains runs: .*doremi, .*inf-dds$"):
        read_run(old.parent)
    (old / "doremi" / "eval" / "blue.jsonl").unlink()
    with pytest.raises(DataError, match=r"eval: .* blue"):
        read_run(old / "doremi")
    (old / "inf-dds" / RECORD_FILE).write_text("[1", encoding="utf-8")
    with pytest.raises(DataError, match=r"record\.json"):
        read_run(old / "inf-dds")


def test_a_package_without_metadata_has_an_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(module, "version", absent)
    assert versions()["mixfluence"] == "unknown"
