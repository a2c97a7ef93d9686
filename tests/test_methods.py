"""Every method as a recipe: selected by one word, its stages run, resumed and counted in the cost.

- Every name in `STRATEGIES` is a word in a recipe, and a recipe ships for it.
- Every method runs end to end from a recipe and leaves a complete run folder.
- A method of several runs keeps them apart, passes on what it found, and records what each cost.
- A run that was stopped in a stage and resumed equals the uninterrupted one, and repeats no finished stage.
- On one designed case any two methods draw differently.
- Every docstring states the cost of its method, and the memory it states is that of `mixfluence plan`.
"""

from __future__ import annotations

import inspect
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.influence import Influences, Probe
from mixfluence.merging import merged_mixture
from mixfluence.plan import plan_run
from mixfluence.policy import UNIFORM, Temperature, Vector
from mixfluence.policy.initial import read_weights, write_weights
from mixfluence.recipe_yaml import RECIPES, load_recipe
from mixfluence.runs import read_trace
from mixfluence.strategies import (
    CRISP,
    ODM,
    STRATEGIES,
    TDRO,
    Aioli,
    Chameleon,
    Cooldown,
    DoGE,
    DoReMi,
    InfDDS,
    MultiDDS,
    RegMix,
    Replay,
    StageResult,
    Static,
    Strategy,
    TargetOnly,
)
from tests.recipes import small_recipe
from tests.test_experiment import StopInRun, recipe_path
from tests.test_recipes import SMALL, write

__all__ = ["recipe_path"]

# Such that a dozen steps of a tiny encoder, whose gradients on dev are small, move something. The last stage of
# `merge` does not train: see tests/test_merging.py.
SETTINGS = {
    "static": "",
    "cooldown": "",
    "inf-dds": "update_every: 4, warmup_steps: 2",
    "multidds": "update_every: 4, warmup_steps: 2, rate: 0.01",
    "doge": "update_every: 2, rounds: 2, step: 1000.0",
    # Without dropout a proxy of a few steps hardly differs from its reference.
    "doremi": "rate: 500",
    "tdro": "rate: 500",
    "crisp": "branching: 2, levels: 2, encoder: {model}",
    "chameleon": "encoder: {model}",
    "aioli": "update_every: 7, warmup_steps: 2, block_steps: 2",
    "odm": "warmup_batches: 2",
    "regmix": "proxies: 8, proxy_steps: 4",
    "target-only": "",
}
STAGES = {
    "doge": ["proxy", "second-proxy"],
    "doremi": ["reference", "proxy"],
    "tdro": ["reference", "proxy"],
    "merge": ["expert-big", "expert-small"],
    "regmix": [f"proxy-{number}" for number in range(1, 9)],
}
STAGE_STEPS = {"regmix": 4, "merge": 8}


def chosen(method: str, model: Path) -> str:
    return f"strategy={{name: {method}, {SETTINGS[method].format(model=model)}}}"


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return record


@pytest.mark.slow
@pytest.mark.parametrize("method", SETTINGS)
def test_every_method_runs_from_a_recipe(method: str, runs: Path) -> None:
    record = assert_complete(runs / method, method)
    assert record["steps"] == 12
    if record["stages"] and method != "regmix":
        found = record["stages"][STAGES[method][-1]]["found"]
        assert read_weights(runs / method / "weights.json") == pytest.approx(found)
        assert found != pytest.approx(dict.fromkeys(found, 1 / len(found)), abs=1e-4)


def assert_complete(folder: Path, method: str) -> dict[str, Any]:
    """Assert that a run folder and those of its stages are complete, and return the record."""
    record = record_of(folder)
    weights = read_weights(folder / "weights.json")
    assert sum(weights.values()) == pytest.approx(1)
    # Weights of clusters are reported as shares of their datasets.
    assert set(weights) == set(record["scores"]) >= {"small", "big"}
    assert ("cluster" in record["seconds"]) == (method in {"crisp", "chameleon"})
    assert (record["seconds"]["probe"] > 0) == (method in {"inf-dds", "multidds", "aioli", "merge"})
    assert list(record["stages"]) == STAGES.get(method, [])
    for stage, facts in record["stages"].items():
        stage_folder = folder / "stages" / stage
        assert facts["steps"] == STAGE_STEPS.get(method, 12)
        assert record["seconds"][f"stage {stage}"] == pytest.approx(sum(facts["seconds"].values()))
        assert facts["found"] == read_weights(stage_folder / "weights.json")
        assert sum(facts["found"].values()) == pytest.approx(1)
        # Only scores are wanted of the models of proxies.
        assert (stage_folder / "model" / "modules.json").exists() == (method != "regmix")
        # Every log is traced, also where a measurement came first.
        logged = [line for line in read_trace(stage_folder / "trace.jsonl") if "loss" in line]
        assert len(logged) == facts["steps"] // 2
    return record


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(0, 1), pytest.param((2,), marks=pytest.mark.soak)])
def test_a_method_stopped_in_a_stage_equals_the_uninterrupted_one(
    stages: tuple[int, ...], recipe_path: Path, tmp_path: Path, tiny_bert_folder: Path
) -> None:
    # The proxy is as long as the recipe says, the other runs as the training.
    method = chosen("doremi", tiny_bert_folder).replace("rate: 500", "rate: 500, proxy_steps: 8")
    changes = [method, "selection.every=4"]
    whole = load_recipe(recipe_path, changes)
    expected = run(whole)
    for stage in stages:
        broken = load_recipe(recipe_path, [*changes, f"output={tmp_path}/broken-{stage}"])
        with pytest.raises(KeyboardInterrupt):
            run(broken, callbacks=[StopInRun(6, stage + 1)])
        done = {path: path.stat().st_mtime_ns for path in (broken.output / "stages").rglob("record.json")}
        assert len(done) == stage
        resumed = run(broken, resume=True)
        assert {path: path.stat().st_mtime_ns for path in done} == done
        for name in ("stages/reference", "stages/proxy", "."):
            ours, theirs = (load_file(made.output / name / "model" / "model.safetensors") for made in (broken, whole))
            assert all(bool((ours[key] == theirs[key]).all()) for key in theirs)
        assert record_of(broken.output)["stages"]["proxy"]["steps"] == 8
        assert resumed["big"].per_query == expected["big"].per_query


@pytest.mark.slow
def test_replay_holds_the_average_of_another_run(recipe_path: Path, tmp_path: Path, tiny_bert_folder: Path) -> None:
    first = load_recipe(recipe_path, [chosen("inf-dds", tiny_bert_folder), "strategy.gate=false"])
    run(first)
    trace = read_trace(first.output / "trace.jsonl")
    steps = [line["weights"]["small"] for line in trace if "trained" in line for _ in line["trained"]]
    assert len(steps) == 12
    again = load_recipe(recipe_path, [f"strategy={{name: replay, run: {first.output}}}", f"output={tmp_path}/again"])
    run(again)
    assert read_weights(again.output / "weights.json")["small"] == pytest.approx(np.mean(steps))


@pytest.mark.parametrize("method", STRATEGIES)
def test_a_word_in_a_recipe_is_the_class_with_its_defaults(method: str, tmp_path: Path) -> None:
    own = f"{{name: {method}, run: elsewhere}}" if method == "replay" else method
    recipe = load_recipe(write(tmp_path, SMALL + f"strategy: {own}\n"), ["dev=[a]"])
    chosen = STRATEGIES[method]
    assert recipe.strategy == (Replay(run=Path("elsewhere")) if method == "replay" else chosen())
    assert (recipe.strategy.name, recipe.strategy.title) == (method, chosen.title)
    assert [stage.name for stage in recipe.strategy.stages(recipe)][-1] == "final"


@pytest.mark.parametrize("method", [name for name in STRATEGIES if name != "static"])
def test_a_recipe_ships_for_every_method(method: str) -> None:
    recipe = load_recipe(RECIPES / f"english13-{method}.yaml", files_may_be_missing=True)
    plain = load_recipe(RECIPES / "english13.yaml", files_may_be_missing=True)
    assert recipe.strategy.name == method
    assert (recipe.train, recipe.training, recipe.selection) == (plain.train, plain.training, plain.selection)
    assert recipe.output == Path(f"runs/english13-{method}")


@pytest.mark.parametrize("method", STRATEGIES)
def test_a_docstring_states_the_cost_of_its_method(method: str, tmp_path: Path) -> None:
    text = " ".join(inspect.cleandoc(STRATEGIES[method].__doc__ or "").split())
    assert re.search(r"\bCosts?\b[^.]*training step", text)
    stated = re.search(r"Memory: (\d) parameter size", text)
    assert stated or "no memory" in text
    (tmp_path / "weights.json").write_text('{"nq": 1}', encoding="utf-8")
    own = [f"strategy.run={tmp_path}", "strategy.which=final", "train={nq: {published: {rows: 9}}}"]
    changes = own if method == "replay" else []
    path = RECIPES / f"english13{'' if method == 'static' else f'-{method}'}.yaml"
    recipe = load_recipe(path, changes, files_may_be_missing=True)
    assert plan_run(recipe).sampler_memory == (int(stated[1]) if stated else 0)


def test_a_recipe_may_not_extend_itself(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"extends: {tmp_path}/b.yaml\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text(f"extends: {tmp_path}/a.yaml\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"b\.yaml:1: extends itself"):
        load_recipe(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("extends: engllish13\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="engllish13: no such file"):
        load_recipe(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("strategy={name: doremi}", "training.mini_batch_size: the proxy of doremi needs every query's loss"),
        ("strategy={name: tdro}", "training.mini_batch_size: the proxy of tdro needs every query's loss"),
    ],
)
def test_unsupported_settings_are_refused_early(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, SMALL), [change, "training.mini_batch_size=2"])


@pytest.mark.parametrize("method", ["inf-dds", "multidds", "doge", "crisp", "aioli", "merge", "regmix", "target-only"])
def test_a_guided_method_needs_a_dev_set(tmp_path: Path, method: str) -> None:
    with pytest.raises(RecipeError, match=f"strategy: {method} needs"):
        load_recipe(write(tmp_path, SMALL), [f"strategy={method}", "dev={}"])


def test_clusters_of_a_pool_need_one_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    with pytest.raises(RecipeError, match="need one query_prompt"):
        load_recipe(path, ["strategy=crisp", "dev=[a]", "train={a: {}, b: {query_prompt: 'ask: '}}"])
    assert load_recipe(
        path, ["strategy={name: crisp, per: dataset}", "dev=[a]", "train={a: {}, b: {query_prompt: 'ask: '}}"]
    )


def measured(*values: float, queries: int = 50) -> Influences:
    gains = np.array(values)[:, None] + 0.001 * np.random.default_rng(0).standard_normal((len(values), queries))
    return Influences(np.arange(len(values)), np.array([], np.int64), ["a"], np.ones(1), [gains])


ONE_HOT = [{name: float(name == own) for name in "abc"} for own in "abc"]


def test_any_two_methods_draw_differently(tmp_path: Path) -> None:
    sizes = {"a": 100, "b": 1_000, "c": 5_000}
    found: dict[str, Vector] = {}
    still: dict[str, Strategy] = {
        "static": Static(),
        "uniform": Static(init=UNIFORM),
        "target-only": TargetOnly(targets=["a"]),
        "cooldown": Cooldown(),
    }
    write_weights(tmp_path / "weights.json", {"a": 0.4, "b": 0.35, "c": 0.25})
    (clusters,) = CRISP().stages(small_recipe())
    (unique,) = Chameleon().stages(small_recipe())
    still |= {
        "crisp": clusters.strategy({"a": 0.7, "b": 0.2, "c": 0.1}),
        "chameleon": unique.strategy({"a": 0.2, "b": 0.5, "c": 0.3}),
        "replay": Replay(run=tmp_path, which="final"),
    }
    for name, strategy in still.items():
        strategy.start(sizes)
        found[name] = strategy.weights(0.25)
    for name, guided in {
        "inf-dds": InfDDS(init=Temperature(5.0)),
        "multidds": MultiDDS(init=Temperature(5.0)),
    }.items():
        guided.start(sizes)
        for _ in range(3):
            guided.update(measured(0.3, 0.1, 0.05))
        found[name] = guided.weights()
    doge = DoGE(init=Temperature(5.0), step=0.1)
    doge.start(sizes)
    doge.update(measured(0.3, 0.1, 0.05))
    found["doge"] = doge.outcome()
    for name, proxy in {"doremi": DoReMi(), "tdro": TDRO()}.items():
        proxy.start(sizes)
        for number, excess in enumerate((0.9, 0.3, 0.1)):
            proxy.weigh(number, np.full(8, 1 + excess), np.ones(8))
        found[name] = proxy.outcome()
    aioli = Aioli(init=Temperature(5.0), probe=Probe())
    aioli.start(sizes)
    for base in (1.0, 0.7, 0.6, 0.55):
        aioli.update(Influences(np.array([], np.int64), np.array([], np.int64), ["a"], np.array([base]), []))
    found["aioli"] = aioli.outcome()
    odm = ODM(warmup_batches=0)
    odm.start(sizes)
    for batch in range(12):
        odm.observe(batch % 3, 0.1 + batch % 3)
    found["odm"] = odm.weights()
    # A model merged of experts stands for a mixture, and proxies are regressed on theirs.
    found["merge"] = np.array(list(merged_mixture(np.array([0.1, 0.5, 0.3, 0.1]), ONE_HOT).values()))
    regmix = RegMix(proxies=8)
    *proxies, _ = regmix.stages(small_recipe())
    results = {}
    for stage in proxies:
        started = stage.strategy({})
        started.start(sizes)
        mixture = dict(zip(sizes, started.weights().tolist(), strict=True))
        results[stage.name] = StageResult(mixture, {"a": 0.2 + 0.6 * mixture["a"]})
    concluded, _ = regmix.conclude(small_recipe(), results, sizes, rows=100)
    found["regmix"] = np.array(list(concluded.values()))
    assert {name for name in found if name != "uniform"} == set(STRATEGIES)
    for one, other in combinations(found, 2):
        assert np.abs(found[one] - found[other]).max() > 1e-3, f"{one} and {other} draw alike"


def test_a_method_of_one_run_builds_its_own_strategy(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, SMALL), ["strategy={name: cooldown, hot: .inf, switch: 0.25}"])
    built = recipe.strategy
    assert isinstance(built, Cooldown)
    assert (built.hot, built.cold, built.switch) == (float("inf"), 1.0, 0.25)
