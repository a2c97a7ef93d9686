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
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mixfluence.data.beir import BeirSource
from mixfluence.data.pydocs import PydocsSource
from mixfluence.data.source import FileSource
from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM, Anchored, PolicyGradient, Temperature, Weights
from mixfluence.recipe import ModelSection, Recipe
from mixfluence.recipe_yaml import RECIPES, dump_recipe, find_recipe, load_recipe
from mixfluence.strategies import InfDDS, MultiDDS, Static

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
    assert len(SHIPPED) >= 26


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
    written = yaml.safe_load(dump_recipe(recipe))["strategy"]["init"]
    assert written == {math.inf: "uniform", 1.0: "proportional"}.get(temperature, {"temperature": temperature})


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
        (
            "format: pydocs",
            "format: pydoc",
            r"yaml:4: train\.numpy\.format and 1 more: expected one of .*found 'pydoc'",
        ),
        ("library:", "librari:", r"recipe.yaml:3: defaults: .*'librari'.*'library'"),
        ("[numpy, scipy]", "[numpy, numpy]", r"recipe.yaml:4: train: .*'numpy'"),
        ("[numpy, scipy]", "[]", r"recipe.yaml:4: train: expected 1 or more entries"),
        ("[numpy, scipy]", "numpy", r"recipe.yaml:4: train: expected names of datasets.*'numpy'"),
        ("name: small", "name: small\noutput:", r"recipe.yaml:2: output: expected a path, found None"),
        (
            "batch_size: 4",
            "batch_size: 4\n  trainer_args: 3",
            r"recipe.yaml:9: training\.trainer_args: expected a mapping",
        ),
        ("[numpy, scipy]", "{numpy: {format: beir, path: nowhere}}", r"recipe.yaml:4: train\.numpy\.path: .*/nowhere"),
        ("name: small", "name: small\nname: twice", r"recipe.yaml:2: not valid YAML \(duplicate key 'name'\)"),
        ("name: small", "name: [small", r"recipe.yaml:\d+: not valid YAML"),
        ("name: small", "name: small\nselection: {every: 3}", r"recipe.yaml:2: selection\.every: .*training\.steps"),
        ("dev: [pandas]", "selection: {every: 5}", r"recipe.yaml:5: selection: .*dev"),
        ("batch_size: 4", "batch_size: 4\n  save_every: 5\nselection: {every: 5}", r"yaml:9: training\.save_every: "),
        ("name: small", "name: small\nstrategy: {init: {temperature: 0}}", r"yaml:2: strategy\.init\.temperature: "),
        ("name: small", "name: small\nstrategy: {init: {}}", r"recipe.yaml:2: strategy\.init: "),
        ("name: small", "name: small\nstrategy: {init: sideways}", r"recipe.yaml:2: strategy\.init: .*'sideways'"),
        ("name: small", "name: ../../x", r"recipe.yaml:1: name: .*'\.\./\.\./x'"),
        (
            "name: small",
            "name: small\nstrategy: {name: inf-dds, inner_steps: 1000000}",
            r":2: strategy\.inner_steps: ",
        ),
        ("name: small", "name: small\nstrategy: inf-dss", r"recipe.yaml:2: strategy\.name: .*static.*'inf-dss'"),
    ],
)
def test_a_wrong_recipe_names_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(write(tmp_path, SMALL.replace(old, new)))
    # A misspelt key that must be given is also missing, and one format stands for three sources.
    assert str(caught.value).count("\n") == sum(word in new for word in ("stepz", "pydoc"))


@pytest.mark.parametrize("kind", ["sparse", "multi-vector", "reranker"])
@pytest.mark.parametrize(
    "needing",
    [
        "model.pooling=mean",
        "model.padding=left",
        "model.bidirectional=false",
        "select.keep=0.5",
        "strategy=doremi",
        "strategy=crisp",
        "training.packing=true",
        "training.compiled=true",
    ],
)
def test_what_needs_a_dense_encoder_is_refused_for_other_kinds(tmp_path: Path, kind: str, needing: str) -> None:
    path = write(tmp_path, SMALL)
    # A static model has no pooling and no padding.
    assert load_recipe(path, ["model={name: minilm}", needing]).model.kind == "dense"
    with pytest.raises(RecipeError, match=r"model\.kind: .* needs a dense encoder"):
        load_recipe(path, [f"model={{name: minilm, kind: {kind}}}", needing])


def test_a_strategy_with_its_own_encoder_works_for_every_kind(tmp_path: Path) -> None:
    changes = ["model={name: minilm, kind: sparse}", "strategy={name: crisp, encoder: minilm}"]
    assert load_recipe(write(tmp_path, SMALL), changes).model.kind == "sparse"


def test_all_errors_are_listed_with_their_lines(tmp_path: Path) -> None:
    wrong = SMALL.replace("steps: 10", "stepz: 10").replace("batch_size: 4", "batch_size: 0\n  temperatur: 1")
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, wrong.replace("wordllama", "3") + "strategy: {name: inf-dds, update_evry: 5}\n"))
    places = [line.removeprefix(f"{tmp_path}/recipe.yaml:").split(": ")[:2] for line in str(caught.value).split("\n")]
    assert [(int(line), key) for line, key in places] == [
        (2, "model.name"),
        (6, "training.steps"),
        (7, "training"),
        (8, "training.batch_size"),
        (9, "training"),
        (10, "strategy"),
    ]


def test_all_contradictions_are_listed_with_their_lines(tmp_path: Path) -> None:
    text = SMALL.replace("[pandas]", "{numpy: {query_prompt: q}}") + "selection: {every: 3}\n"
    places = r"(?s):5: dev\.numpy: .*:6: training\.save_every: .*:9: selection\.every: "
    with pytest.raises(RecipeError, match=places):
        load_recipe(write(tmp_path, text), ["training.save_every=2"])


def test_a_key_of_a_section_is_found_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"unknown key 'steps'; did you mean 'training\.steps'\?"):
        load_recipe(write(tmp_path, SMALL), ["steps=10"])


PARENT = """\
name: parent
model: {name: minilm, pooling: mean, query_length: 64}
defaults: {format: pydocs, library: "{name}"}
train: [numpy, scipy]
dev: [pandas, numpy]
strategy:
  name: inf-dds
  init: uniform
  update_every: 20
  rule: {name: gradient, step: 0.5}
  probe: {batch_size: 16, dev_batch_size: 32}
training: {steps: 10, batch_size: 4, temperature: 0.05, warmup_steps: 3, trainer_args: {max_grad_norm: 2.0}}
"""


def extend(tmp_path: Path, text: str) -> Recipe:
    (tmp_path / "parent.yaml").write_text(PARENT, encoding="utf-8")
    return load_recipe(write(tmp_path, f"extends: {tmp_path}/parent.yaml\n{text}"))


def test_extending_merges_sections_key_by_key(tmp_path: Path) -> None:
    recipe = extend(tmp_path, "training: {steps: 300, trainer_args: {max_grad_norm: 1.0, adam_beta2: 0.99}}\n")
    assert recipe.training.steps == 300
    assert (recipe.training.temperature, recipe.training.warmup_steps) == (0.05, 3)
    assert recipe.training.trainer_args == {"max_grad_norm": 1.0, "adam_beta2": 0.99}
    recipe = extend(tmp_path, "strategy: {update_every: 5, probe: {batch_size: 8}, rule: {step: 0.1}}\n")
    strategy = recipe.strategy
    assert isinstance(strategy, InfDDS)
    assert (strategy.update_every, strategy.init, strategy.rule) == (
        5,
        UNIFORM,
        PolicyGradient(step=0.1),
    )
    assert (strategy.probe.batch_size, strategy.probe.dev_batch_size) == (8, 32)


def test_extending_replaces_datasets_and_what_has_another_name(tmp_path: Path) -> None:
    recipe = extend(tmp_path, "dev: {scipy: {}}\nmodel: {name: wordllama}\nstrategy: {name: multidds}\n")
    assert list(recipe.dev) == ["scipy"]
    assert recipe.model == ModelSection(name="wordllama")
    assert recipe.strategy == MultiDDS()
    assert extend(tmp_path, "strategy: static\n").strategy == Static()
    recipe = extend(tmp_path, "strategy: {init: {weights: {numpy: 1, scipy: 2}}, rule: {name: anchored}}\n")
    assert isinstance(recipe.strategy, InfDDS)
    assert (recipe.strategy.init, recipe.strategy.rule) == (Weights({"numpy": 1.0, "scipy": 2.0}), Anchored())


def test_an_override_of_a_name_leaves_no_keys_of_the_old_one(tmp_path: Path) -> None:
    path = write(tmp_path, PARENT)
    assert load_recipe(path, ["strategy.name=multidds"]).strategy == MultiDDS()
    assert load_recipe(path, ["strategy.name=inf-dds"]).strategy == load_recipe(path).strategy
    # Lengths are the recipe's choice, pooling is the model's.
    assert load_recipe(path, ["model.name=other"]).model == ModelSection(name="other", query_length=64)
    with pytest.raises(RecipeError, match=r":2: model: .*model=\{name: wordllama\}"):
        load_recipe(path, ["model.name=wordllama"])
    assert load_recipe(path, ["model={name: wordllama}"]).model == ModelSection(name="wordllama")


def test_an_override_reaches_a_dataset_of_a_list(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, SMALL), ["train.numpy.split=all"])
    assert [getattr(source, "split", None) for source in recipe.train.values()] == ["all", "train"]
    with pytest.raises(RecipeError, match=r"'nunpy'.*'numpy'"):
        load_recipe(write(tmp_path, SMALL), ["train.nunpy.split=all"])


@pytest.mark.parametrize("override", ["training.steps", "=3", "training.steps.x=all", "training.steps=[1"])
def test_a_wrong_override_is_named(tmp_path: Path, override: str) -> None:
    with pytest.raises(RecipeError, match="override"):
        load_recipe(write(tmp_path, SMALL), [override])


def test_missing_recipes_name_the_nearest_or_all() -> None:
    with pytest.raises(RecipeError, match="english13"):
        find_recipe("no-such-recipe")
    with pytest.raises(RecipeError, match=r"'english13-doge'\?$"):
        find_recipe("english13-dog.yaml")
    # Whoever names a file does not want one of these.
    with pytest.raises(RecipeError, match=r"no such file$"):
        find_recipe("folder/tickets.csv")
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
