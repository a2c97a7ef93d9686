"""The recipes of the paper's three settings.

- They say what the paper says: hyper-parameters, weights and counts, each against the paper's own tables.
- Each names its data, hardware and command, can be planned without the data, and would start on it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from sentence_transformers import SentenceTransformer

from mixfluence.build import training_arguments
from mixfluence.data.bge_m3 import published_sources
from mixfluence.plan import plan_run
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import RECIPES, dump_recipe, find_recipe, load_recipe
from reproduction.cells import RECIPES as TWINS
from reproduction.paper import read_table
from reproduction.schema import study_names

pytestmark = pytest.mark.slow

BEIR7 = ["beir7", *(f"beir7-{target}" for target in ("dbpedia", "fever", "fiqa", "hotpotqa", "joint", "quora"))]
ST32 = ["st32", "st32-expert", "st32-expert-inf-dds", "st32-inf-dds", "st32-shipped"]
MLDR13 = ["mldr13", "mldr13-inf-dds"]
PAPER = [*BEIR7, *ST32, *MLDR13]
STACKEXCHANGE = {f"stackexchange-{kind}" for kind in ("title-body", "titlebody-answer", "title-answer", "math")}


def load(name: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", files_may_be_missing=True)


def strategy(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(dump_recipe(recipe))["strategy"]
    return found


def reptile(recipe: Recipe) -> str:
    return str(strategy(recipe).get("reptile", {}).get("rate", "off"))


def rows(recipe: Recipe) -> dict[str, int | None]:
    return {name: source.published.rows if source.published else None for name, source in recipe.train.items()}


def test_all_recipes_of_the_paper_ship() -> None:
    found = {path.stem for path in RECIPES.glob("*.yaml")}
    assert {name for name in found if name.startswith(("beir7", "st32", "mldr13"))} == set(PAPER)
    assert len(PAPER) == 14


@pytest.mark.parametrize("name", PAPER)
def test_a_header_names_data_hardware_and_command(name: str) -> None:
    header = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0]
    for word in ("Purpose", "Data", "Hardware", "Cost", "Run", "Expect"):
        assert f"# {word}:" in header
    assert f"mixfluence train {name}" in header


@pytest.mark.parametrize("name", [*ST32, *MLDR13])
def test_a_header_names_the_plan_for_its_processes(name: str) -> None:
    header = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0]
    assert "torchrun --nproc-per-node 8 " in header
    assert f"mixfluence plan {name} --processes 8" in header


def test_overheads_on_eight_processes_by_hand() -> None:
    # One of eight languages on each: 3 steps of 4 rows for 5, two looks at 32 rows of 13 dev sets.
    mldr = plan_run(load("mldr13-inf-dds"), processes=8)
    assert mldr.stages[0].update_cost == pytest.approx(3 * 4 / 5 + 2 * 13 * 32 / 5 / 3)
    assert mldr.stages[0].updates == 38
    assert mldr.times_static == pytest.approx(1.22, abs=0.005)
    german = {dataset.name: dataset.epochs for dataset in mldr.datasets}["de"]
    assert german == pytest.approx(10_000 * 40 * 4 / 340 / 1_847)
    # Four of 32 datasets on each: 12 steps of 256 rows for 2,000, five looks at 256 rows of five dev sets.
    pairs = plan_run(load("st32-inf-dds"), processes=8)
    assert pairs.stages[0].update_cost == pytest.approx((12 + 5 * 5 / 3) * 256 / 2_000)
    assert pairs.stages[0].updates == 598
    assert pairs.times_static == pytest.approx(1.01, abs=0.001)


@pytest.mark.parametrize("name", PAPER)
def test_it_is_planned_without_data(name: str) -> None:
    plan = plan_run(load(name))
    assert plan.cost >= load(name).training.steps
    assert all(stage.updates for stage in plan.stages) == name.endswith(
        ("inf-dds", "dbpedia", "fever", "fiqa", "hotpotqa", "joint", "quora")
    )


@pytest.mark.parametrize("name", PAPER)
def test_the_host_takes_its_arguments(name: str, tiny_bert: SentenceTransformer) -> None:
    recipe = load(name)
    args = training_arguments(recipe, tiny_bert, {train: train for train in recipe.train})
    assert args.per_device_train_batch_size == recipe.training.batch_size
    assert args.gradient_checkpointing == name.startswith("mldr13")


@pytest.mark.parametrize("name", BEIR7)
def test_beir7_is_the_papers(name: str) -> None:
    recipe = load(name)
    counts = {row.labels["dataset"]: row.cells["rows"] for row in read_table("sizes-beir-train").rows}
    assert rows(recipe) == counts
    training, model = recipe.training, recipe.model
    assert (training.steps, training.batch_size, training.warmup_steps) == (7_000, 256, 250)
    assert (training.learning_rate, training.temperature, training.hard_negatives) == (2e-5, 0.02, 0)
    assert (model.name, model.pooling, model.query_length, model.passage_length) == ("roberta-base", "cls", 64, 256)
    if (found := strategy(recipe))["name"] == "inf-dds":
        assert (found["update_every"], found["warmup_steps"]) == (50, 50)
        assert found["probe"]["batch_size"] == found["probe"]["dev_batch_size"] == 256
        assert reptile(recipe) != "off"


def test_beir7_has_each_target_by_itself_and_all_at_once() -> None:
    joint = load("beir7-joint")
    targets = ["dbpedia-entity", "fever", "fiqa", "hotpotqa", "quora"]
    assert list(joint.dev) == list(joint.test) == list(load("beir7").dev) == targets
    for target in targets:
        alone = load(f"beir7-{target.split('-')[0]}")
        assert dict(alone.dev) == {target: joint.dev[target]}
        assert dict(alone.test) == {target: joint.test[target]}
    printed = {row.labels["dataset"]: row.cells["judgements"] for row in read_table("sizes-beir-dev").rows}
    for target, source in joint.dev.items():
        assert source.published is not None
        assert source.published.judgements == printed[target.split("-")[0]]


@pytest.mark.parametrize("name", ST32)
def test_st32_is_the_papers(name: str) -> None:
    recipe, table = load(name), read_table("weights-sentence-transformers")
    printed = {row.labels["dataset"]: row.cells["rows"] for row in table.rows}
    # The paper counts triplets there, the file has a line for each query.
    assert printed["msmarco"] == 9_144_553
    assert rows(recipe) == printed | {"msmarco": rows(load("beir7"))["msmarco"]}
    training, model = recipe.training, recipe.model
    assert (training.steps, training.batch_size, training.warmup_steps) == (150_000, 2_000, 1_000)
    assert (model.pooling, model.query_length, model.passage_length) == ("cls", 64, 256)
    negatives = {train: getattr(source, "negatives", None) for train, source in recipe.train.items()}
    kept = {train: most for train, most in negatives.items() if most is not None}
    assert kept == {"msmarco": 1, "specter": 0, "allnli": 0, "quora-triplets": 0}
    if (found := strategy(recipe))["name"] == "inf-dds":
        assert (found["update_every"], found["warmup_steps"]) == (250, 500)
        assert found["probe"]["batch_size"] == 256


def test_st32_starts_evenly_or_from_the_experts_weights() -> None:
    for name in ("st32", "st32-inf-dds"):
        assert strategy(load(name))["init"] == "uniform"
    printed = {row.labels["dataset"]: row.cells["weight"] for row in read_table("weights-sentence-transformers").rows}
    for name in ("st32-expert", "st32-expert-inf-dds"):
        assert strategy(load(name))["init"]["weights"] == printed
    shipped = strategy(load("st32-shipped"))["init"]["weights"]
    assert {name for name, weight in shipped.items() if weight != printed[name]} == STACKEXCHANGE
    assert sum(shipped[name] for name in STACKEXCHANGE) == 1_802


@pytest.mark.parametrize("name", MLDR13)
def test_mldr13_is_the_papers(name: str) -> None:
    recipe = load(name)
    lines = Counter[str]()
    for source in published_sources().values():
        lines[source.language] += source.lines
    assert rows(recipe) == lines
    weights = strategy(recipe)["init"]["weights"]
    assert sum(weights.values()) == 340
    for row in read_table("weights-bge-m3").rows:
        assert weights[str(row.labels["language"])] / 3.4 == pytest.approx(row.cells["percent"], abs=6e-4)
    assert tuple(recipe.dev) == tuple(recipe.test) == read_table("mldr13").columns
    training, model = recipe.training, recipe.model
    assert (training.steps, training.batch_size, training.warmup_steps) == (10_000, 5, 1_000)
    assert (training.loss.name, training.hard_negatives, training.temperature) == ("m3-kd", 8, 0.02)
    assert (model.pooling, model.query_length, model.passage_length) == ("cls", 512, 8192)


def test_mldr13_is_guided_eight_languages_at_a_time_without_reptile() -> None:
    found = strategy(load("mldr13-inf-dds"))
    assert (found["subset"], found["update_every"], found["warmup_steps"]) == (8, 250, 500)
    assert (found["probe"]["metric"], found["probe"]["batch_size"]) == ("info-nce-hard", 4)
    assert reptile(load("mldr13-inf-dds")) == "off"


@pytest.mark.parametrize("path", sorted([*RECIPES.glob("*.yaml"), *TWINS.glob("*.yaml")]), ids=lambda path: path.stem)
def test_the_commands_of_the_headers_are_valid(path: Path) -> None:
    header = path.read_text(encoding="utf-8").partition("# Run:")[2].partition("# Expect:")[0]
    trained = [shlex.split(line) for line in re.findall(r"mixfluence train ([^;\n]+)", header)]
    studied = re.findall(r"python -m reproduction ([a-z-]+)", header)
    assert trained or studied
    for name, *overrides in trained:
        recipe = find_recipe(name)
        changed = load_recipe(recipe, overrides, files_may_be_missing=True)
        assert not overrides or changed != load_recipe(recipe, files_may_be_missing=True)
    assert set(studied) <= set(study_names())


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("beir7", ["strategy.name=multidds", "strategy.init.temperature=0.3"]),
        ("beir7-fever", ["strategy={name: multidds, init: uniform}"]),
        ("beir7-joint", ["strategy=doremi"]),
        ("st32-expert", ["strategy.name=doge"]),
        ("st32-expert", ["strategy.name=doremi"]),
        ("mldr13", ["strategy={name: doge, rounds: 2}"]),
        ("mldr13-inf-dds", ["strategy.reptile=relative"]),
    ],
)
def test_another_strategy_is_a_word_away(name: str, overrides: list[str]) -> None:
    recipe = load_recipe(RECIPES / f"{name}.yaml", overrides, files_may_be_missing=True)
    assert recipe.strategy != load(name).strategy


def test_paths_are_named_by_format(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPES / "mldr13.yaml", [f"defaults.path={tmp_path}/{{format}}"], files_may_be_missing=True)
    assert recipe.train["ar"].path == tmp_path / "bge_m3"  # type: ignore[attr-defined]
    assert recipe.test["ar"].path == tmp_path / "mldr"  # type: ignore[attr-defined]
