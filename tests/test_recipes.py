"""Recipes.

- Every recipe that ships is valid, has a header with its purpose and needs, and survives writing and reading.
- A wrong recipe gives one error that names the file, the line, the key and, for a misspelt key, the nearest.
- Sources inherit defaults, their name and the split of their section.
- Plain values have the types of YAML 1.2.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixfluence.data.beir import BeirSource
from mixfluence.data.pydocs import PydocsSource
from mixfluence.data.source import FileSource
from mixfluence.errors import RecipeError
from mixfluence.policy import Temperature
from mixfluence.recipe_yaml import RECIPES, dump_recipe, find_recipe, load_recipe
from mixfluence.strategies import Static

SHIPPED = sorted(RECIPES.glob("*.yaml"))
SMALL = """\
name: small
model: {name: wordllama}
defaults: {format: pydocs, library: "{name}"}
train: [numpy, scipy]
dev: [pandas]
training:
  steps: 10
  batch_size: 4
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


HEADER = ("Purpose", "Data", "Hardware", "Cost", "Run", "Expect")


def test_recipes_ship() -> None:
    assert len(SHIPPED) == 30


def test_a_dataset_has_as_many_rows_in_every_recipe() -> None:
    known: dict[tuple[str, ...], set[int]] = {}
    for path in SHIPPED:
        recipe = load_recipe(path, files_may_be_missing=True)
        for source in (*recipe.train.values(), *recipe.dev.values()):
            if isinstance(source, FileSource) and source.published and source.published.rows:
                place = [str(getattr(source, key, None)) for key in ("path", "language", "split", "per")]
                known.setdefault(tuple(place), set()).add(source.published.rows)
    assert len(known) > 100
    assert {place: counts for place, counts in known.items() if len(counts) > 1} == {}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_explain_themselves(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path, files_may_be_missing=True)
    assert recipe.name == path.stem
    header = path.read_text(encoding="utf-8")
    written = [line[2:].partition(":")[0] for line in header.splitlines() if line.startswith("# ")]
    assert [word for word in written if word in HEADER] == list(HEADER)
    again = load_recipe(write(tmp_path, dump_recipe(recipe)), files_may_be_missing=True)
    assert again == recipe


def test_sources_inherit_defaults_name_and_split(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, SMALL))
    assert recipe.train["numpy"] == PydocsSource(format="pydocs", library="numpy", split="train")
    assert recipe.dev["pandas"] == PydocsSource(format="pydocs", library="pandas", split="dev")


def test_a_source_overrides_its_defaults_and_ignores_those_of_other_formats(tmp_path: Path) -> None:
    (tmp_path / "fever").mkdir()
    sources = f"{{numpy: {{split: all}}, fever: {{format: beir, path: '{tmp_path}/{{name}}'}}}}"
    recipe = load_recipe(write(tmp_path, SMALL.replace("[numpy, scipy]", sources)))
    assert recipe.train["numpy"] == PydocsSource(format="pydocs", library="numpy", split="all")
    assert recipe.train["fever"] == BeirSource(format="beir", path=tmp_path / "fever", split="train")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1e-3", 1e-3),
        ("2e-5", 2e-5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("3", 3.0),
    ],
)
def test_numbers_are_read_as_people_write_them(tmp_path: Path, written: str, expected: float) -> None:
    recipe = load_recipe(write(tmp_path, SMALL), [f"training.learning_rate={written}"])
    assert recipe.training.learning_rate == expected


TEXTS = ["no", "yes", "on", "2020-01-01", "12:30", "0x1F", "017", "="]


@pytest.mark.parametrize("name", TEXTS)
def test_words_and_dates_are_text(tmp_path: Path, name: str) -> None:
    assert load_recipe(write(tmp_path, SMALL), [f"name={name}"]).name == name


@pytest.mark.parametrize("name", [*TEXTS, "2e-5", "1.5", "3", "true", "null", "<<", "[a", "a: b", "ünicode"])
def test_any_name_survives_writing_and_reading(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(write(tmp_path, SMALL)).model_copy(update={"name": name})
    assert load_recipe(write(tmp_path, dump_recipe(recipe))) == recipe


@pytest.mark.parametrize("written", ["true", "True", "TRUE"])
def test_true_is_a_truth_value(tmp_path: Path, written: str) -> None:
    assert load_recipe(write(tmp_path, SMALL), [f"training.compiled={written}"]).training.compiled is True


@pytest.mark.parametrize(
    ("init", "temperature"),
    [("uniform", math.inf), ("proportional", 1.0), ("{temperature: .inf}", math.inf), ("{temperature: 0.3}", 0.3)],
)
def test_initial_distributions(tmp_path: Path, init: str, temperature: float) -> None:
    recipe = load_recipe(write(tmp_path, SMALL), [f"strategy.init={init}"])
    assert isinstance(recipe.strategy, Static)
    assert recipe.strategy.init == Temperature(temperature)


def test_an_override_may_spell_out_what_a_word_stood_for(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, SMALL), ["strategy.init=uniform", "strategy.init.temperature=5"])
    assert isinstance(recipe.strategy, Static)
    assert recipe.strategy.init == Temperature(5.0)


def test_a_bare_strategy_name_is_enough(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, SMALL), ["strategy=static"]).strategy.name == "static"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps: 10", "stepz: 10", r"recipe.yaml:7: training: unknown key 'stepz'; did you mean 'steps'\?"),
        ("steps: 10", "steps: many", r"recipe.yaml:7: training\.steps: .*integer.*found 'many'"),
        ("steps: 10", "steps: true", r"recipe.yaml:7: training\.steps: .*True"),
        ("steps: 10", "steps: 010", r"recipe.yaml:7: training\.steps: .*'010'"),
        ("steps: 10", "steps: 0", r"recipe.yaml:7: training\.steps: .*0"),
        ("  steps: 10\n", "", r"recipe.yaml:6: training\.steps: this key is missing"),
        ("model: {name: wordllama}\n", "", r"recipe.yaml:1: model: "),
        ("format: pydocs", "format: pydoc", r"recipe.yaml:4: train\.numpy\.format: expected one of .*found 'pydoc'"),
        ("library:", "librari:", r"recipe.yaml:3: defaults: .*'librari'.*'library'"),
        ("[numpy, scipy]", "[numpy, numpy]", r"recipe.yaml:4: train: .*'numpy'"),
        ("[numpy, scipy]", "[]", r"recipe.yaml:4: train: "),
        ("[numpy, scipy]", "{numpy: {format: beir, path: nowhere}}", r"recipe.yaml:4: train\.numpy\.path: .*/nowhere"),
        ("name: small", "name: small\nname: twice", r"recipe.yaml:2: not valid YAML \(duplicate key 'name'\)"),
        ("name: small", "name: [small", r"recipe.yaml:\d+: not valid YAML"),
        ("name: small", "name: small\nselection: {every: 3}", r"recipe.yaml:2: selection\.every: .*training\.steps"),
        ("dev: [pandas]", "selection: {every: 5}", r"recipe.yaml:5: selection: .*dev"),
        ("batch_size: 4", "batch_size: 4\n  save_every: 5\nselection: {every: 5}", r"yaml:9: training\.save_every: "),
        ("name: small", "name: small\nstrategy: {init: {temperature: 0}}", r"yaml:2: strategy\.init\.temperature: "),
        ("name: small", "name: small\nstrategy: {init: {}}", r"recipe.yaml:2: strategy\.init: "),
        ("name: small", "name: small\nstrategy: {init: sideways}", r"recipe.yaml:2: strategy\.init: .*'sideways'"),
        ("name: small", "name: small\nstrategy: inf-dss", r"recipe.yaml:2: strategy\.name: .*static.*'inf-dss'"),
    ],
)
def test_a_wrong_recipe_names_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(write(tmp_path, SMALL.replace(old, new)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["training.steps", "=3", "train.numpy.split=all", "training.steps=[1"])
def test_a_wrong_override_is_named(tmp_path: Path, override: str) -> None:
    with pytest.raises(RecipeError, match="override"):
        load_recipe(write(tmp_path, SMALL), [override])


def test_missing_recipes_list_what_there_is() -> None:
    with pytest.raises(RecipeError, match="english13"):
        find_recipe("no-such-recipe")
    assert find_recipe("pydocs") == RECIPES / "pydocs.yaml"


@given(st.text(max_size=200))
def test_any_text_is_a_recipe_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.mktemp("any"), text)
    message = None
    try:
        load_recipe(path)
    except RecipeError as error:
        message = str(error)
    assert message is None or str(path) in message
