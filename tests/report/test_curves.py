"""Series say what the trace and the record say.

- Probabilities and drawn shares add up to 1, epochs to the rows that were drawn.
- Seeds of one recipe are one group, copies and unfinished runs are not part of it.
- Long traces become short series, many datasets few lines; what is not a number is a gap.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from mixfluence.report.folders import read_run
from mixfluence.report.series import Report, collect

from mixfluence.errors import DataError
from mixfluence.report.curves import MOST_DATASETS, curves, limit_of, rows_trained
from tests.test_methods import SETTINGS


def trace_of(names: list[str], steps: int, **update: Any) -> list[dict[str, Any]]:
    """A training whose k-th step draws dataset k modulo their number, with a line a step."""
    weights = {name: 1 / len(names) for name in names}
    lines: list[dict[str, Any]] = [
        {"step": 0, "seconds": 0.0, "datasets": {name: {"rows": 10, "batch_size": 4} for name in names}}
    ]
    for step in range(1, steps + 1):
        lines.append({"step": step, "weights": weights, "trained": [step % len(names)], "rows": [4], "loss": step / 2})
    if update:
        lines.append({"step": steps, "weights": {name: float(name == names[0]) for name in names}, "update": update})
    return lines


def test_a_probability_holds_from_its_step_on_and_starts_at_zero() -> None:
    found = curves(trace_of(["a", "b"], 4, influence={"a": 1.0, "b": 2.0}), "", 100)
    assert found.steps == [0, 1, 2, 3, 4]
    assert found.probability == [[0.5, 0.5, 0.5, 0.5, 1.0], [0.5, 0.5, 0.5, 0.5, 0.0]]
    assert found.updates == [4]
    assert found.loss == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]


def test_drawn_shares_count_rows_in_windows() -> None:
    lines = trace_of(["a", "b"], 16)
    lines[1]["rows"] = [12]
    found = curves(lines, "", 100)
    assert found.windows == [8, 16]
    # Eight batches a window, four of each dataset; one of b's has 12 rows instead of 4.
    assert found.share == [[0.4, 0.5], [0.6, 0.5]]
    assert rows_trained(lines) == {"a": 32, "b": 40}


def test_long_traces_are_thinned_but_keep_both_ends() -> None:
    found = curves(trace_of(["a", "b"], 1000), "", 50)
    assert len(found.steps) == len(found.loss) == 50
    assert (found.steps[0], found.steps[-1]) == (0, 1000)
    assert len(found.windows) <= 24


def test_many_datasets_are_drawn_as_the_largest_and_the_rest() -> None:
    names = [f"d{number}" for number in range(100)]
    lines = trace_of(names, 3, influence=dict.fromkeys(names, 1.0))
    lines[-1]["weights"] = {name: (0.5 if name in ("d7", "d99") else 0.0) for name in names}
    found = curves(lines, "", 100)
    assert len(found.datasets) == len(found.probability) == MOST_DATASETS
    assert found.datasets[-1] == "77 others"
    assert {"d7", "d99"} < set(found.datasets)
    for column in zip(*found.probability, strict=True):
        assert sum(value or 0 for value in column) == pytest.approx(1, abs=1e-3)
    assert len(found.influence["all"]) == MOST_DATASETS - 1


def test_what_is_not_a_number_or_was_not_measured_is_a_gap() -> None:
    update = {"influence": {"a": float("nan")}, "on_targets": {"x": {"a": 1.0}, "y": {}}, "dev": {"x": None}}
    found = curves(trace_of(["a", "b"], 2, **update), "", 100)
    assert found.influence == {"all": [[None], [None]], "x": [[1.0], [None]], "y": [[None], [None]]}
    assert found.dev == {"x": [None]}
    assert found.error == []


def test_the_more_runs_the_fewer_points() -> None:
    one = trace_of([f"d{number}" for number in range(13)], 2)
    assert limit_of([one]) == 200
    assert limit_of([one] * 300) < 50
    assert limit_of([one] * 100_000) == 12


@pytest.fixture(scope="module")
def report(runs: Path) -> Report:
    return collect([read_run(runs / name) for name in [*SETTINGS, "replay", "static-1", "inf-dds-1", "killed"]])


@pytest.mark.slow
def test_shares_add_up_to_one_in_every_training_of_every_method(report: Report) -> None:
    trainings = [training for run in report.runs for training in run.trainings]
    assert len(trainings) > len(report.runs)
    for training in trainings:
        for columns in (training.probability, training.share):
            assert len(columns) == len(training.datasets)
            for column in zip(*columns, strict=True):
                assert sum(value or 0 for value in column) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_epochs_are_the_rows_that_were_drawn(report: Report, runs: Path) -> None:
    for name in ("static", "inf-dds", "crisp", "doremi"):
        record = read_run(runs / name).record
        epochs = next(run for run in report.runs if run.label == name).epochs
        drawn = {dataset: value * record["datasets"][dataset]["rows"] for dataset, value in epochs.items()}
        assert drawn == pytest.approx(record["rows_drawn"])


@pytest.mark.slow
def test_seeds_of_one_recipe_are_one_group(report: Report, runs: Path) -> None:
    groups = {group.label: [report.runs[run].label for run in group.runs] for group in report.groups}
    assert groups["static"] == ["static", "static-1"]
    assert groups["inf-dds"] == ["inf-dds", "inf-dds-1"]
    assert groups["killed"] == ["killed"]
    averages = [
        100 * fmean(scores["ndcg@10"] for scores in read_run(runs / name).record["scores"].values())
        for name in ("static", "static-1")
    ]
    static = next(group for group in report.groups if group.label == "static")
    assert static.average == pytest.approx(fmean(averages))
    assert static.spread == pytest.approx(stdev(averages))
    seconds = [read_run(runs / name).record["seconds"] for name in ("static", "static-1")]
    assert report.unit == "seconds on CPU"
    assert static.own_cost == pytest.approx(fmean(parts["train"] + parts["probe"] for parts in seconds))


@pytest.mark.slow
def test_influences_are_those_of_the_trace(report: Report, runs: Path) -> None:
    updates = [line for line in read_run(runs / "inf-dds").trace if "update" in line]
    (training,) = next(run for run in report.runs if run.label == "inf-dds").trainings
    assert training.updates == [line["step"] for line in updates]
    assert set(training.influence) == {"all", "big", "small"}
    place = training.datasets.index("big")
    assert training.influence["all"][place] == pytest.approx(
        [x["update"]["influence"]["big"] for x in updates], rel=1e-4
    )
    assert training.error[place] == pytest.approx([x["update"]["error"]["big"] for x in updates], rel=1e-4)
    on_small = [x["update"]["on_targets"]["small"]["big"] for x in updates]
    assert training.influence["small"][place] == pytest.approx(on_small, rel=1e-4)
    assert next(run for run in report.runs if run.label == "aioli").trainings[0].influence


@pytest.mark.slow
def test_a_killed_run_is_shown_as_far_as_it_came(report: Report) -> None:
    killed = next(run for run in report.runs if run.label == "killed")
    assert (killed.finished, killed.scores, killed.cost) == (False, {}, {})
    assert 8 <= killed.reached < killed.steps == 24
    assert sum(killed.weights.values()) == pytest.approx(1)
    assert [step for step, _ in killed.selection["mean"]] == [8]


def _copy(runs: Path, name: str, to: Path) -> Path:
    shutil.copytree(runs / name, to, ignore=shutil.ignore_patterns("model", "*.safetensors", "*.pt"))
    return to


@pytest.mark.slow
def test_a_copy_of_a_run_is_no_second_seed(runs: Path, tmp_path: Path) -> None:
    copy = _copy(runs, "static", tmp_path / "copy")
    found = collect([read_run(path) for path in (runs / "static", copy, runs / "static-1")])
    assert [[found.runs[run].label for run in group.runs] for group in found.groups] == [
        ["static", "static-1"],
        ["copy"],
    ]
    assert found.groups[1].spread is None
    with pytest.raises(DataError, match="named twice"):
        collect([read_run(copy), read_run(copy)])


@pytest.mark.slow
def test_a_checkpoint_cut_short_falls_back_to_the_one_before(runs: Path, tmp_path: Path) -> None:
    copy = _copy(runs, "static", tmp_path / "copy")
    whole = collect([read_run(copy)]).runs[0].selection
    assert [step for step, _ in whole["mean"]] == [8, 16, 24]
    assert set(whole) == {"mean", "big", "small"}
    (newest,) = (copy / "checkpoints").glob("checkpoint-24/trainer_state.json")
    newest.write_text(newest.read_text(encoding="utf-8")[:100], encoding="utf-8")
    older = collect([read_run(copy)]).runs[0].selection
    assert older["mean"] == whole["mean"][: len(older["mean"])] != whole["mean"]
    shutil.rmtree(copy / "checkpoints")
    assert collect([read_run(copy)]).runs[0].selection == {}


@pytest.mark.slow
def test_what_makes_runs_unlike_is_noted(runs: Path, tmp_path: Path) -> None:
    assert collect([read_run(runs / name) for name in ("static", "crisp")]).notes == []
    copy = _copy(runs, "static-1", tmp_path / "copy")
    record = json.loads((copy / "record.json").read_text(encoding="utf-8"))
    record["tests"]["small"]["fingerprint"] = "another"
    del record["scores"]["big"], record["tests"]["big"]
    (copy / "record.json").write_text(json.dumps(record), encoding="utf-8")
    found = collect([read_run(runs / "static"), read_run(copy)])
    assert any("do not compare: small" in note for note in found.notes)
    assert found.shared_tests == ["<script>alert(1)</script>", "small"]


@pytest.mark.slow
def test_a_damaged_trace_is_named(runs: Path, tmp_path: Path) -> None:
    copy = _copy(runs, "static", tmp_path / "copy")
    trace = copy / "trace.jsonl"
    trace.write_text(trace.read_text(encoding="utf-8").replace('"trained": [', '"trained": [9, '), encoding="utf-8")
    with pytest.raises(DataError, match=r"copy/trace\.jsonl: not the trace of a run \(line 2: \d+ batches in"):
        read_run(copy)
    with pytest.raises(DataError, match="no run to report on"):
        collect([])
