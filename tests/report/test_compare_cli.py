"""`mixfluence compare` and `mixfluence weights` on real runs of every method."""

from __future__ import annotations

import csv
import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from mixfluence.cli.runs import compare, weights
from mixfluence.errors import DataError, MixfluenceError, RecipeError
from mixfluence.policy.initial import read_weights
from mixfluence.recipe_yaml import load_recipe
from tests.test_methods import SETTINGS

pytestmark = pytest.mark.slow

SETS = {"big", "small", "<script>alert(1)</script>"}
app = typer.Typer()
app.command()(compare)
app.command()(weights)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def printed(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(kind: type[MixfluenceError], *words: object) -> str:
    result = call(*words)
    assert isinstance(result.exception, kind), result.output
    assert result.stdout == ""
    return str(result.exception)


def copy_of(run: Path, to: Path) -> Path:
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("checkpoints", "model", "stages"))
    return to


def test_every_method_stands_in_one_table(runs: Path) -> None:
    methods = [*SETTINGS, "replay"]
    text = printed("compare", *(runs / name for name in [*methods, "static-1", "inf-dds-1"]))
    assert "NDCG@10" in text
    assert all(name in text for name in [*methods, *SETS])
    assert max(map(len, text.splitlines())) <= 80
    assert "static-1" not in text


def test_seeds_share_a_row_and_costs_have_their_parts(runs: Path) -> None:
    names = ["static", "inf-dds", "doremi", "crisp", "static-1", "inf-dds-1"]
    facts: dict[str, Any] = json.loads(printed("compare", *(runs / name for name in names), "--format", "json"))
    rows = {row["name"]: row for row in facts["rows"]}
    references = [name for name in rows if name not in names]
    assert [name.split()[0] for name in references[:2]] == ["zero-shot", "BM25"]
    assert references[2:] == [f"{name} + BM25" for name in names[:4]]
    assert rows["static + BM25"]["seeds"] == [0, 1]
    rows = {name: row for name, row in rows.items() if name in names}
    assert {name: row["seeds"] for name, row in rows.items()} == {
        "static": [0, 1], "inf-dds": [0, 1], "doremi": [0], "crisp": [0],
    }  # fmt: skip
    for name in ("static", "static-1"):
        record = json.loads((runs / name / "record.json").read_text(encoding="utf-8"))
        place = rows["static"]["runs"].index(str(runs / name))
        for dataset in SETS:
            found = rows["static"]["tests"][dataset]["by_seed"][place]
            assert found == pytest.approx(100 * record["scores"][dataset]["ndcg@10"])
    assert facts["differences"] == []
    assert {part for part, hours in rows["static"]["cost"].items() if hours} == {
        "training", "total", "relative_to_static", "step_equivalents",
    }  # fmt: skip
    assert rows["inf-dds"]["cost"]["probing"] > 0
    assert rows["doremi"]["cost"]["stages"] > 0
    assert rows["crisp"]["cost"]["clustering"] > 0
    # Not above 1: seconds of runs this small are those of whatever else the machine had to do.
    doremi, static = rows["doremi"]["cost"], rows["static"]["cost"]
    assert doremi["relative_to_static"] == pytest.approx(doremi["total"] / static["total"])
    assert doremi["total"] == pytest.approx(doremi["training"] + doremi["stages"])


@pytest.mark.parametrize("test", ["t", "randomisation"])
def test_two_copies_of_a_run_do_not_differ(runs: Path, tmp_path: Path, test: str) -> None:
    copy = copy_of(runs / "inf-dds", tmp_path / "copy")
    words = ["compare", runs / "inf-dds", copy, "--test", test, "--bootstrap"]
    facts = json.loads(printed(*words, "--format", "json"))
    outcomes = [facts["contrast"]["average"], *facts["contrast"]["tests"].values()]
    assert [(o["difference"], o["p"], o["interval"]) for o in outcomes] == [(0, 1, [0, 0])] * 4
    text = printed(*words)
    assert not any(f"{digit}*" in text for digit in range(10))


def test_files_get_the_format_of_their_ending(runs: Path, tmp_path: Path) -> None:
    words = ["compare", runs / "static", runs / "inf-dds", "--measure", "mrr@10"]
    for name in ("t.tex", "t.md", "t.csv", "t.json", "t.txt"):
        assert printed(*words, "-o", tmp_path / "new" / name) == ""
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()}
    assert "\\toprule" in texts[".tex"]
    assert "| ---: |" in texts[".md"]
    assert [line["name"] for line in csv.DictReader(StringIO(texts[".csv"]))][:2] == ["static", "inf-dds"]
    assert json.loads(texts[".json"])["measure"] == "mrr@10"
    assert texts[".txt"].startswith("MRR@10 × 100")
    assert "\x1b" not in texts[".txt"]
    # What is asked for counts more than the ending.
    printed(*words, "--format", "csv", "-o", tmp_path / "odd.json")
    assert (tmp_path / "odd.json").read_text(encoding="utf-8") == texts[".csv"]
    assert "cannot be written" in refusal(RecipeError, *words, "-o", tmp_path)


def test_rows_to_test_are_chosen_by_name_or_position(runs: Path) -> None:
    words = ["compare", runs / "static", runs / "inf-dds", runs / "doge", "--format", "json", "--between"]
    contrast = json.loads(printed(*words, "doge", "1"))["contrast"]
    assert (contrast["first"], contrast["second"]) == ("doge", "static")
    assert "'40'" in refusal(RecipeError, *words, "doge", "40")
    assert json.loads(printed(*words, "doge", "BM25"))["contrast"]["second"] == "BM25"


def test_what_cannot_be_compared_is_refused(runs: Path, tmp_path: Path) -> None:
    assert "killed: the run has not finished" in refusal(DataError, "compare", runs / "static", runs / "killed")
    assert "not a run folder" in refusal(DataError, "compare", runs / "static", runs / "data")
    other = copy_of(runs / "static", tmp_path / "other")
    record = json.loads((other / "record.json").read_text(encoding="utf-8"))
    record["tests"]["big"]["fingerprint"] = "0" * 32
    (other / "record.json").write_text(json.dumps(record), encoding="utf-8")
    message = refusal(DataError, "compare", runs / "static", other)
    assert message.startswith("static and other cannot be compared: ")
    assert " big " in message


@pytest.mark.parametrize("method", [*SETTINGS, "replay"])
def test_weights_start_another_run(runs: Path, tmp_path: Path, method: str) -> None:
    text = printed("weights", runs / method)
    assert json.loads(text) == read_weights(runs / method / "weights.json")
    path = tmp_path / "learned.json"
    assert printed("weights", runs / method, "-o", path) == ""
    assert path.read_text(encoding="utf-8") == text
    recipe = load_recipe(runs / "static" / "recipe.yaml", [f"strategy={{name: static, init: {{file: {path}}}}}"])
    strategy = recipe.strategy
    strategy.start(dict.fromkeys(recipe.train, 100))
    learned = json.loads(text)
    assert strategy.weights().tolist() == pytest.approx([learned[name] for name in recipe.train])


def test_average_weights_are_those_of_the_batches(runs: Path) -> None:
    average = json.loads(printed("weights", runs / "cooldown", "--which", "average"))
    assert set(average) == SETS
    assert sum(average.values()) == pytest.approx(1)
    final = json.loads(printed("weights", runs / "cooldown"))
    # It began hotter than it ended, so that on average the biggest set had less.
    assert average["big"] < final["big"] - 0.01


def test_weights_of_clusters_or_of_no_run_are_refused(runs: Path) -> None:
    message = refusal(DataError, "weights", runs / "crisp", "--which", "average")
    assert "clusters such as pool/" in message
    assert "--which final" in message
    unfinished = refusal(DataError, "weights", runs / "killed")
    assert "has no weights.json" in unfinished
    assert "--which average" in unfinished
    assert sum(json.loads(printed("weights", runs / "killed", "--which", "average")).values()) == pytest.approx(1)
    assert "not a run folder" in refusal(DataError, "weights", runs / "data")
