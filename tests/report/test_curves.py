"""Series say what the trace says.

- Probabilities add up to 1, epochs to the rows that were drawn.
- Long traces become short series, many datasets few lines; what was not measured is missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mixfluence.display import thin
from mixfluence.report.curves import (
    MOST_DATASETS,
    MOST_POINTS,
    Points,
    by_dataset,
    dev_evals,
    epochs,
    final_weights,
    influence_unit,
    influences,
    sampling_states,
    shown_datasets,
    step_equivalents,
)
from mixfluence.runs import read_run
from tests.report.test_compare import made_run
from tests.test_methods import SETTINGS

OLD = Path(__file__).parent / "old-runs"


def trace_of(names: list[str], steps: int, **update: Any) -> list[dict[str, Any]]:
    """A training whose k-th step draws dataset k modulo their number, with a line per step."""
    weights = {name: 1 / len(names) for name in names}
    lines: list[dict[str, Any]] = [
        {"step": 0, "seconds": 0.0, "datasets": {name: {"rows": 10, "batch_size": 4} for name in names}}
    ]
    for step in range(1, steps + 1):
        lines.append({"step": step, "weights": weights, "trained": [step % len(names)], "rows": [4], "loss": step / 2})
    if update:
        lines.append({"step": steps, "weights": {name: float(name == names[0]) for name in names}, "update": update})
    return lines


def test_probabilities_start_at_step_0_and_end_with_the_last_line_of_a_step() -> None:
    series = by_dataset(sampling_states(trace_of(["a", "b"], 4, influence={"a": 1.0, "b": 2.0})), ["a", "b"])
    assert list(series) == ["a", "b"]
    assert series["a"] == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5), (4, 1.0)]
    assert series["b"] == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5), (4, 0.0)]


def test_epochs_count_rows() -> None:
    lines = trace_of(["a", "b"], 16)
    # One batch of b has 12 rows instead of 4.
    lines[1]["rows"] = [12]
    assert epochs(lines) == {"a": 3.2, "b": 4.0}
    assert epochs(lines[:1]) == {}


def test_long_series_are_thinned_but_keep_both_ends() -> None:
    found = thin(range(1000), MOST_POINTS)
    assert (len(found), found[0], found[-1]) == (MOST_POINTS, 0, 999)


def test_many_datasets_become_the_largest_and_the_rest() -> None:
    names = [f"d{number}" for number in range(100)]
    trace = trace_of(names, 2)
    trace[2]["weights"] = {name: (0.5 if name in ("d7", "d99") else 0.0) for name in names}
    series = by_dataset(sampling_states(trace), shown_datasets(trace))
    assert len(series) == MOST_DATASETS
    assert list(series)[-1] == f"{101 - MOST_DATASETS} others"
    assert {"d7", "d99"} < set(series)
    assert totals(series) == pytest.approx([1, 1, 1])


def test_influences_are_by_target_and_one_target_stands_for_all() -> None:
    update: dict[str, Any] = {"influence": {"a": None, "b": 2.0}, "on_targets": {"x": {"a": 1.0}, "y": {}}}
    found = influences(trace_of(["a", "b"], 2, **update))
    assert found == {"all": [(2, {"a": None, "b": 2.0})], "x": [(2, {"a": 1.0})], "y": [(2, {})]}
    # What was not measured is missing.
    assert by_dataset(found["all"], ["a", "b"]) == {"a": [], "b": [(2, 2.0)]}
    update["on_targets"].pop("y")
    assert list(influences(trace_of(["a", "b"], 2, **update))) == ["all"]
    assert influences(trace_of(["a", "b"], 2)) == {}


def totals(series: dict[str, Points]) -> list[float]:
    """The sum over all series at each step."""
    return [sum(value for _, value in points) for points in zip(*series.values(), strict=True)]


@pytest.mark.slow
def test_series_of_real_runs_add_up(runs: Path) -> None:
    for name in [*SETTINGS, "replay", "killed"]:
        run = read_run(runs / name)
        for trace in (run.trace, *run.stages.values()):
            states = sampling_states(trace)
            series = by_dataset(states, shown_datasets(trace))
            assert totals(series) == pytest.approx([1] * len(states), abs=1e-4)
        if run.finished:
            sizes = run.record["datasets"]
            drawn = {dataset: value * sizes[dataset]["rows"] for dataset, value in epochs(run.trace).items()}
            assert drawn == pytest.approx(run.record["rows_drawn"])
        assert sum(final_weights(run).values()) == pytest.approx(1)


@pytest.mark.slow
def test_influences_of_real_runs_are_those_of_the_trace(runs: Path) -> None:
    trace = read_run(runs / "inf-dds").trace
    updates = [(line["step"], line["update"]) for line in trace if "update" in line]
    found = influences(trace)
    assert list(found) == ["all", "big", "small"]
    assert found["all"] == [(step, update["influence"]) for step, update in updates]
    assert found["small"] == [(step, update["on_targets"]["small"]) for step, update in updates]
    assert influences(read_run(runs / "aioli").trace)


@pytest.mark.slow
def test_dev_scores_of_checkpoints_survive_a_cut_off_checkpoint(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(
        runs / "static", tmp_path / "copy", ignore=shutil.ignore_patterns("model", "*.safetensors", "*.pt")
    )
    whole = dev_evals(read_run(copy))
    assert [step for step, _ in whole["mean"]] == [0, 4, 8, 12]
    assert set(whole) == {"mean", "big", "small"}
    (newest,) = (copy / "checkpoints").glob("checkpoint-12/trainer_state.json")
    newest.write_text(newest.read_text(encoding="utf-8")[:100], encoding="utf-8")
    older = dev_evals(read_run(copy))
    assert older["mean"] == whole["mean"][: len(older["mean"])] != whole["mean"]
    shutil.rmtree(copy / "checkpoints")
    assert dev_evals(read_run(copy)) == {}
    assert [step for step, _ in dev_evals(read_run(runs / "killed"))["mean"]] == [0, 4]


def test_work_is_counted_in_training_steps() -> None:
    run = read_run(OLD / "inf-dds")
    updates = [line["update"] for line in run.trace if "update" in line]
    probing = run.recipe.strategy.probing
    assert probing is not None
    batch = run.recipe.training.batch_size
    # Three datasets a round, one batch each, and four forward passes over both dev sets.
    dev = sum(updates[0]["rows"].values()) / batch
    own = (probing.method.batch_size or batch) / batch
    expected = 24 + len(updates) * (3 * probing.steps * own + 4 * dev / 3)
    assert step_equivalents(run) == pytest.approx(expected)
    # Reference and final stage, and a proxy that also evaluates the reference and itself without dropout, as planned.
    staged = read_run(OLD / "doremi")
    reference, proxy = (staged.stages[name][-1]["step"] for name in ("reference", "proxy"))
    assert step_equivalents(staged) == pytest.approx(24 + reference + proxy * 5 / 3)


def test_the_unit_of_influences() -> None:
    assert influence_unit(read_run(OLD / "inf-dds")) == "improvement of dev info-nce, nats"
    assert influence_unit(made_run("a", strategy="doge")) == "projection of gradients"
    assert influence_unit(made_run("a", strategy="multidds")) == "cosine of gradients"
    ranked = made_run("a", strategy={"name": "inf-dds", "probe": {"metric": "soft-ndcg"}})
    assert influence_unit(ranked) == "improvement of dev soft-ndcg"
