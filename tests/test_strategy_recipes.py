"""Strategies in recipes.

- A bare word is enough. A preset fills in missing keys, key by key in sections that the recipe has too.
- Rule and Reptile may be words or mappings, and become the objects of that name with those settings.
- A recipe that was written out reads back as an equal recipe.
- A wrong key or value gives one error with file, line and dotted key.
- A run from a recipe adapts: its trace lists the rounds, its folder the weights learned and their cost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.influence import Probe, Reptile
from mixfluence.influence.metrics import METRICS
from mixfluence.policy import Anchored, PolicyGradient, Rule, Temperature, Weights
from mixfluence.policy.initial import read_weights
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.runs import read_trace
from mixfluence.strategies import InfDDS, Static
from mixfluence.strategies.inf_dds import PRESETS
from tests.test_experiment import write_domain
from tests.test_recipes import SMALL, write


def read(tmp_path: Path, strategy: str, *overrides: str) -> Recipe:
    """Read the small recipe with a strategy, given as the YAML that follows its key."""
    return load_recipe(write(tmp_path, f"{SMALL}strategy: {strategy}\n"), overrides)


def built(tmp_path: Path, strategy: str, *overrides: str) -> InfDDS:
    found = read(tmp_path, strategy, *overrides).strategy
    assert isinstance(found, InfDDS)
    return found


# Words, mappings and presets.


def test_a_bare_word_is_enough(tmp_path: Path) -> None:
    assert built(tmp_path, "inf-dds") == InfDDS()
    assert built(tmp_path, "{name: inf-dds}") == InfDDS()


PAPER = {
    "inner_steps": 3,
    "rule": PolicyGradient(step=0.02),
    "reptile": Reptile(rate="relative", weights="softmax"),
    "shrink": False,
    "gate": False,
    "freeze_below": 0.0,
    "floor": 0.0,
    "subset": None,
}


@pytest.mark.parametrize(
    ("preset", "expected", "probe"),
    [
        ("paper", {"update_every": 50, "warmup_steps": 50}, {"batch_size": 256, "dev_batch_size": 256}),
        (
            "paper-sentence-transformers",
            {"update_every": 250, "warmup_steps": 500},
            {"batch_size": 256, "dev_batch_size": 256},
        ),
        (
            "paper-mldr",
            {"update_every": 250, "warmup_steps": 500, "subset": 8, "reptile": None}
            | {"rule": PolicyGradient(step=0.2)},
            {"batch_size": 4, "dev_batch_size": 32, "metric": "info-nce-hard"},
        ),
    ],
)
def test_a_preset_is_the_papers_setting(
    tmp_path: Path, preset: str, expected: dict[str, Any], probe: dict[str, Any]
) -> None:
    found = built(tmp_path, f"{{name: inf-dds, preset: {preset}}}")
    for name, value in {**PAPER, **expected}.items():
        assert getattr(found, name) == value, name
    assert found.probe == Probe(state="inherited", learning_rate="current", **probe)


def test_recipes_may_name_the_presets_and_keep_only_their_values(tmp_path: Path) -> None:
    assert set(PRESETS) == {"paper", "paper-sentence-transformers", "paper-mldr", "thorough"}
    for name, preset in PRESETS.items():
        found = built(tmp_path, f"{{name: inf-dds, preset: {name}}}")
        assert found == InfDDS.model_validate({"name": "inf-dds", **preset})
        assert "preset" not in found.model_dump(exclude_none=True)


def test_a_key_of_the_recipe_beats_its_preset(tmp_path: Path) -> None:
    plain = built(tmp_path, "{name: inf-dds, preset: paper}")
    found = built(tmp_path, "{name: inf-dds, preset: paper, update_every: 7, gate: true, rule: anchored}")
    assert (found.update_every, found.gate, found.rule) == (7, True, Anchored())
    changed = {"update_every", "gate", "rule"}
    assert found.model_dump(exclude=changed) == plain.model_dump(exclude=changed)


def test_a_key_of_a_nested_section_beats_only_that_key(tmp_path: Path) -> None:
    plain = built(tmp_path, "{name: inf-dds, preset: paper-mldr}")
    found = built(tmp_path, "{name: inf-dds, preset: paper-mldr, probe: {batch_size: 16}}")
    assert found.probe == plain.probe.model_copy(update={"batch_size": 16})
    assert found.model_dump(exclude={"probe"}) == plain.model_dump(exclude={"probe"})
    named = built(tmp_path, "{name: inf-dds, preset: paper, rule: {name: gradient, betas: [0.5, 0.9]}}")
    nameless = built(tmp_path, "{name: inf-dds, preset: paper, rule: {betas: [0.5, 0.9]}}")
    assert named.rule == nameless.rule == PolicyGradient(step=0.02, betas=[0.5, 0.9])
    weighted = built(tmp_path, "{name: inf-dds, preset: paper, reptile: {weights: sum}}")
    assert weighted.reptile == Reptile(rate="relative", weights="sum")


def test_another_rule_than_the_presets_inherits_nothing_of_it(tmp_path: Path) -> None:
    found = built(tmp_path, "{name: inf-dds, preset: paper, rule: {name: anchored}}")
    assert found.rule == Anchored()


def test_an_override_reaches_into_a_preset(tmp_path: Path) -> None:
    found = read(tmp_path, "{name: inf-dds, preset: paper}", "strategy.probe.dev_batch_size=64").strategy
    assert isinstance(found, InfDDS)
    assert (found.probe.dev_batch_size, found.probe.batch_size) == (64, 256)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("gradient", PolicyGradient(step=0.02)),
        ("{name: gradient, step: 0.5}", PolicyGradient(step=0.5)),
        ("anchored", Anchored(reach=2.0, memory=0.9)),
        ("{name: anchored, reach: 1.5, memory: 0.5}", Anchored(reach=1.5, memory=0.5)),
    ],
)
def test_a_rule_is_a_word_or_a_mapping(tmp_path: Path, written: str, expected: Rule) -> None:
    assert built(tmp_path, f"{{name: inf-dds, rule: {written}}}").rule == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("off", None),
        ("relative", Reptile(rate="relative")),
        ("literal", Reptile(rate="literal")),
        ("{rate: 0.5}", Reptile(rate=0.5)),
        ("{rate: relative, weights: sum}", Reptile(rate="relative", weights="sum")),
        ("{weights: sum}", Reptile(weights="sum")),
        ("{rate: off, weights: sum}", None),
    ],
)
def test_reptile_is_a_word_or_a_mapping(tmp_path: Path, written: str, expected: Reptile | None) -> None:
    assert built(tmp_path, f"{{name: inf-dds, reptile: {written}}}").reptile == expected


# Objects.


def test_every_setting_reaches_the_strategy(tmp_path: Path) -> None:
    written = """
  name: inf-dds
  init: {weights: {numpy: 1, scipy: 3}}
  update_every: 7
  warmup_steps: 11
  inner_steps: 2
  subset: 5
  probe:
    state: momentum-free
    learning_rate: 0.001
    batch_size: 12
    dev_batch_size: 34
    metric: soft-ndcg
    snapshot: cpu
  freeze_below: 0.2
  floor: 0.01
  max_epochs: 3"""
    found = built(tmp_path, written)
    assert found.init == Weights({"numpy": 1, "scipy": 3})
    assert (found.update_every, found.warmup_steps, found.inner_steps, found.subset) == (7, 11, 2, 5)
    assert (found.freeze_below, found.floor, found.max_epochs) == (0.2, 0.01, 3)
    probe = found.probe
    assert isinstance(probe, Probe)
    assert (probe.state, probe.learning_rate, probe.batch_size, probe.dev_batch_size) == (
        *("momentum-free", 0.001),
        *(12, 34),
    )
    assert probe.snapshot == "cpu"


@pytest.mark.parametrize(("shrink", "gate"), [(True, False), (False, True)])
def test_shrink_and_gate_reach_the_strategy(tmp_path: Path, shrink: bool, gate: bool) -> None:
    words = {True: "true", False: "false"}
    found = built(tmp_path, f"{{name: inf-dds, shrink: {words[shrink]}, gate: {words[gate]}}}")
    assert (found.shrink, found.gate) == (shrink, gate)


@pytest.mark.parametrize(
    ("metric", "higher_is_better", "hard_negatives"),
    [
        ("info-nce", False, False),
        ("info-nce-hard", False, True),
        ("soft-ndcg", True, True),
        ("distillation", False, True),
    ],
)
def test_metrics_have_names(tmp_path: Path, metric: str, higher_is_better: bool, hard_negatives: bool) -> None:
    name = built(tmp_path, f"{{name: inf-dds, probe: {{metric: {metric}}}}}").probe.metric
    assert isinstance(name, str)
    found = METRICS[name](nn.Identity())
    assert (found.higher_is_better, found.hard_negatives) == (higher_is_better, hard_negatives)


def test_the_training_loss_may_be_the_metric(tmp_path: Path) -> None:
    assert built(tmp_path, "{name: inf-dds, probe: {metric: training-loss}}").probe.metric == "training-loss"


def test_a_mapping_without_a_name_is_static(tmp_path: Path) -> None:
    found = read(tmp_path, "{init: {temperature: 3}}").strategy
    assert isinstance(found, Static)
    assert found.init == Temperature(3)
    assert found.probing is None


# Written out and read back.


@pytest.mark.parametrize(
    "strategy",
    [
        "inf-dds",
        "{name: inf-dds, preset: paper}",
        "{name: inf-dds, preset: paper-sentence-transformers, rule: anchored, probe: {batch_size: 8}}",
        "{name: inf-dds, preset: paper-mldr, reptile: {rate: 0.5}}",
        "{name: inf-dds, preset: paper-mldr, subset: null, probe: {batch_size: null}}",
        "{name: inf-dds, init: uniform, subset: 2, rule: {name: gradient, step: 0.5}, reptile: literal}",
        "{name: inf-dds, probe: {learning_rate: 1e-5, metric: distillation, dev_batch_size: 32}}",
        "{name: static, init: {weights: {numpy: 1, scipy: 2}}, floor: 0.1}",
    ],
)
def test_a_recipe_that_was_written_out_is_the_same_recipe(tmp_path: Path, strategy: str) -> None:
    recipe = read(tmp_path, strategy)
    text = dump_recipe(recipe)
    assert load_recipe(write(tmp_path, text)) == recipe
    assert yaml.safe_load(text)["strategy"].keys() >= {"name", "init", "floor"}


# Errors. The strategy of the small recipe starts at line 9.


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            "\n  name: inf-dds\n  probe:\n    stat: inherited",
            r"recipe.yaml:12: strategy\.probe: unknown key 'stat'; did you mean 'state'\?$",
        ),
        (
            "\n  name: inf-dds\n  probe:\n    learning_rate: fast",
            r"recipe.yaml:12: strategy\.probe\.learning_rate: expected current or a number above 0, found 'fast'$",
        ),
        (
            "\n  name: inf-dds\n  probe: {learning_rate: -1}",
            r"recipe.yaml:11: strategy\.probe\.learning_rate: expected current or a number above 0, found -1$",
        ),
        (
            "\n  name: inf-dds\n  probe: {metric: ndcg}",
            r"recipe.yaml:11: strategy\.probe\.metric: .*info-nce.*'ndcg'$",
        ),
        (
            "\n  name: inf-dds\n  probe: {dev_batch_size: 1}",
            r"recipe.yaml:11: strategy\.probe\.dev_batch_size: input should be greater than or equal to 2, found 1$",
        ),
        (
            "\n  name: inf-dds\n  rule: gradent",
            r"recipe.yaml:11: strategy\.rule\.name: .*anchored.*'gradent'; .*'gradient'\?$",
        ),
        (
            "\n  name: inf-dds\n  rule:\n    name: gradent",
            r"recipe.yaml:12: strategy\.rule\.name: .*'gradent'; .*'gradient'\?$",
        ),
        (
            "\n  name: inf-dds\n  rule: {name: gradient, memory: 0.5}",
            r"recipe.yaml:11: strategy\.rule: unknown key 'memory'; known are name, step, betas$",
        ),
        (
            "\n  name: inf-dds\n  rule:\n    name: anchored\n    memory: 1",
            r"recipe.yaml:13: strategy\.rule\.memory: input should be less than 1, found 1$",
        ),
        (
            "\n  name: inf-dds\n  reptile: on",
            r"recipe.yaml:11: strategy\.reptile\.rate: expected relative, literal or a number above 0, "
            r"found 'on'$",
        ),
        (
            "\n  name: inf-dds\n  reptile:\n    weights: mean",
            r"recipe.yaml:12: strategy\.reptile\.weights: input should be 'softmax' or 'sum', found 'mean'$",
        ),
        (
            "\n  name: inf-dds\n  preset: papers",
            r"recipe.yaml:11: strategy\.preset: input should be 'paper', .*, found 'papers'$",
        ),
        (
            "\n  name: inf-dds\n  preset: paper\n  update_evry: 3",
            r"recipe.yaml:12: strategy: unknown key 'update_evry'; did you mean 'update_every'\?$",
        ),
        (
            "\n  name: inf-dds\n  update_every: 0",
            r"recipe.yaml:11: strategy\.update_every: input should be greater than or equal to 1, found 0$",
        ),
        (
            "\n  name: inf-dds\n  subset: 1",
            r"recipe.yaml:11: strategy\.subset: input should be greater than or equal to 2, found 1$",
        ),
        (
            "\n  name: inf-dds\n  init: {weights: {rule: much}}",
            r"recipe.yaml:11: strategy\.init\.weights\.rule: input should be a valid number, found 'much'$",
        ),
        ("\n  name: inf-dds\n  probe:", r"recipe.yaml:11: strategy\.probe: expected a mapping with keys such as "),
        ("\n  name: inf-dds\n  probe: 3", r"recipe.yaml:11: strategy\.probe: expected a mapping with keys such as "),
        ("\n  name: static\n  gate: true", r"recipe.yaml:11: strategy: unknown key 'gate'"),
        ("inf-dss", r"recipe.yaml:9: strategy\.name: expected one of static, .*, found 'inf-dss'; .*'inf-dds'\?$"),
    ],
)
def test_a_wrong_strategy_names_the_place(tmp_path: Path, strategy: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read(tmp_path, strategy)
    assert "\n" not in str(caught.value)


def test_influence_needs_a_dev_set(tmp_path: Path) -> None:
    text = SMALL.replace("dev: [pandas]\n", "") + "strategy: inf-dds\n"
    with pytest.raises(RecipeError, match=r"recipe.yaml:8: strategy: inf-dds needs at least one dev set"):
        load_recipe(write(tmp_path, text))
    assert load_recipe(write(tmp_path, text), ["strategy=static"]).strategy.name == "static"


def test_a_dev_set_of_a_training_set_must_have_its_prompts(tmp_path: Path) -> None:
    def recipe(prompt: str) -> Recipe:
        text = SMALL.replace("[pandas]", f"{{numpy: {{query_prompt: '{prompt}'}}}}")
        return load_recipe(write(tmp_path, text.replace("[numpy, scipy]", "{numpy: {query_prompt: 'q: '}}")))

    with pytest.raises(RecipeError, match=r"dev\.numpy: its prompts differ from those of train\.numpy"):
        recipe("Q: ")
    assert recipe("q: ").dev["numpy"].query_prompt == "q: "


# A whole run.


@pytest.mark.slow
def test_a_run_from_a_recipe_adapts_and_records_it(tmp_path: Path, tiny_bert_folder: Path) -> None:
    for number, (name, queries) in enumerate({"big": 120, "small": 60}.items()):
        write_domain(tmp_path / "data" / name, queries, number)
    text = f"""\
name: guided
model: {{name: {tiny_bert_folder}, pooling: mean, query_length: 8, passage_length: 16}}
defaults: {{format: beir, path: '{tmp_path}/data/{{name}}'}}
train: [big, small]
dev: [small]
test: [small]
strategy: {{name: inf-dds, preset: paper, update_every: 3, warmup_steps: 3, probe: {{batch_size: 8}}, rule: anchored}}
training: {{steps: 10, batch_size: 8, learning_rate: 1e-3, log_every: 5}}
output: {tmp_path}/run
"""
    recipe = load_recipe(write(tmp_path, text))
    scores = run(recipe)
    folder = recipe.output
    assert load_recipe(folder / "recipe.yaml") == recipe
    lines = read_trace(folder / "trace.jsonl")
    rounds = [line for line in lines if "update" in line]
    assert [line["step"] for line in rounds] == [3, 6, 9]
    assert sum(len(line.get("trained", [])) for line in lines) == 10
    for line in rounds:
        assert line["update"]["influence"].keys() == {"big", "small"}
        assert line["update"]["memory"] == pytest.approx(4, abs=0.1)
    assert rounds[0]["weights"]["small"] != pytest.approx(0.5, abs=0.01)
    assert read_weights(folder / "weights.json") == pytest.approx(rounds[-1]["weights"])
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert record["steps"] == 10
    assert sum(record["rows_drawn"].values()) == 10 * 8
    assert record["scores"]["small"]["ndcg@10"] == pytest.approx(scores["small"].mean("ndcg@10"))
    assert "strategy Inf-DDS;" in (folder / "model" / "README.md").read_text(encoding="utf-8")


def test_a_strategy_shows_what_differs_from_its_defaults() -> None:
    assert (repr(InfDDS()), str(Static(max_epochs=3))) == ("InfDDS()", "Static(max_epochs=3.0)")
    assert eval(repr(InfDDS(update_every=5, probe=Probe(batch_size=8)))) == InfDDS(
        update_every=5, probe=Probe(batch_size=8)
    )
