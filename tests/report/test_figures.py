"""Charts exist only for what has data, show names as text, and are small."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from mixfluence.report.compare import overview
from mixfluence.report.curves import LEAST_SMOOTHED, MOST_POINTS, smoothed
from mixfluence.report.figures import Chart, charts_of_all, charts_of_run
from mixfluence.runs import Run, read_run
from tests.report.test_compare import made_run

OLD = Path(__file__).parent / "old-runs"


def all_charts(runs: list[Run]) -> list[Chart]:
    return [*charts_of_all(overview(runs)), *(chart for run in runs for chart in charts_of_run(run))]


def test_every_chart_of_runs_of_one_and_of_three_stages() -> None:
    charts = all_charts([read_run(OLD / name) for name in ("inf-dds", "doremi")])
    assert [chart.title for chart in charts] == [
        *("Average NDCG@10 against cost in seconds", "Cost of a run by part, in seconds"),
        *("Training loss", "Sampling probability of a dataset"),
        "Sampling probability",
        "Influence on dev sets, ± 1.96 standard errors where known",
        "What helps whom: improvement of dev info-nce, nats, mean of the last rounds",
        *("Training loss", "Dev metric of the sampler", "Epochs of each dataset"),
        *("Stage reference: sampling probability", "Stage proxy: sampling probability"),
        *("Stage proxy: mixture found so far", "Stage final: sampling probability"),
        *("Training loss", "Epochs of each dataset"),
    ]  # fmt: skip
    # Every axis says what it shows, and in which unit.
    assert all(chart.layout["xaxis"]["title"]["text"] for chart in charts)
    for chart in charts:
        for trace in chart.data:
            assert trace.get("type") == "heatmap" or len(trace["x"]) == len(trace["y"]) <= MOST_POINTS


def test_the_reader_chooses_a_dataset_or_a_target_and_sees_all_runs_or_datasets() -> None:
    runs = [read_run(OLD / name) for name in ("inf-dds", "doremi")]
    charts = {chart.title: chart for chart in charts_of_all(overview(runs))}
    chart = charts["Sampling probability of a dataset"]
    (menu,) = chart.layout["updatemenus"]
    assert [button["label"] for button in menu["buttons"]] == ["blue", "green", "grey", "red"]
    assert [trace["name"] for trace in chart.data] == ["inf-dds", "doremi"] * 4
    for place, button in enumerate(menu["buttons"]):
        assert [number // 2 == place for number in range(8)] == button["args"][1]
    influence = next(chart for chart in charts_of_run(runs[0]) if chart.title.startswith("Influence"))
    assert [button["label"] for button in influence.layout["updatemenus"][0]["buttons"]] == ["all", "blue", "red"]
    first = next(line["update"] for line in runs[0].trace if "update" in line)
    green = influence.data[1]
    assert (green["name"], green["x"][0]) == ("green", 4)
    assert green["y"][0] == pytest.approx(first["influence"]["green"], rel=1e-4)
    assert green["error_y"]["array"][0] == pytest.approx(1.96 * first["error"]["green"], rel=1e-4)


def test_the_loss_has_no_colour_of_a_dataset() -> None:
    run = read_run(OLD / "inf-dds")
    loss = next(chart for chart in charts_of_run(run) if chart.title == "Training loss")
    sampling = next(chart for chart in charts_of_run(run) if chart.title == "Sampling probability")
    colours = {trace["line"]["color"] for trace in sampling.data}
    assert not colours & {loss.data[0]["line"]["color"], loss.data[0]["marker"]["color"]}


def test_a_long_curve_is_smoothed_with_the_measured_line_behind_it() -> None:
    run = read_run(OLD / "inf-dds")
    noisy = [(step, 2.0 + (-1) ** step) for step in range(1, 2 * LEAST_SMOOTHED + 1)]
    run = replace(run, trace=[*run.trace[:1], *({**run.trace[1], "step": s, "loss": v} for s, v in noisy)])
    raw, calm = next(chart for chart in charts_of_run(run) if chart.title == "Training loss").data
    assert raw["y"] == [value for _, value in noisy]
    assert (raw["opacity"] < 1, raw["showlegend"], raw["legendgroup"]) == (True, False, calm["legendgroup"])
    assert "opacity" not in calm
    assert stdev(calm["y"]) < stdev(raw["y"]) / 2
    assert fmean(calm["y"]) == pytest.approx(2.0, abs=0.05)
    assert smoothed(noisy[: LEAST_SMOOTHED - 1]) == []


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    path = shutil.copytree(OLD / "inf-dds", tmp_path / "run")
    names = {"blue": "<b>bold</b>", "red": "x" * 60}
    for changed in (path / "trace.jsonl", path / "weights.json"):
        text = changed.read_text(encoding="utf-8")
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        changed.write_text(text, encoding="utf-8")
    text = json.dumps(list(charts_of_run(read_run(path))))
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "x" * 41 not in text


def test_what_has_no_data_has_no_chart() -> None:
    run = read_run(OLD / "inf-dds")
    assert all_charts([Run(run.path, run.recipe)]) == []
    assert [chart.title for chart in all_charts([made_run("a")])] == ["Cost of a run by part, in minutes"]


@pytest.mark.slow
def test_every_method_has_charts(runs: Path) -> None:
    for name in ("doge", "crisp", "aioli", "killed"):
        assert len(list(charts_of_run(read_run(runs / name)))) > 2


def test_the_matrix_shows_what_helps_whom() -> None:
    run = read_run(OLD / "inf-dds")
    chart = next(chart for chart in charts_of_run(run) if "helps whom" in chart.title)
    (heat,) = chart.data
    assert (heat["x"], set(heat["y"])) == (["blue", "red"], {"blue", "green", "grey", "red"})
    rounds = [line["update"]["on_targets"]["red"] for line in run.trace if "update" in line]
    green = [own["green"] for own in rounds if "green" in own]
    assert len(green) > 1
    assert heat["z"][heat["y"].index("green")][1] == pytest.approx(fmean(green))
    error = stdev(green) / len(green) ** 0.5
    assert heat["text"][heat["y"].index("green")][1] == f"{fmean(green):+.2g} ± {error:.1g}"
