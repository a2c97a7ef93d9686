"""What a run will cost, before it runs.

- Costs of every method on a case worked out by hand: three datasets, two dev sets that fill 1.5 training batches.
- Epochs under the first weights, schedules and limits.
- On several processes: larger batches, probes that are shared out, gradients that are not.
- Each warning comes on a recipe made for it, and none on a sound one.
- Without data, published sizes count; a dataset without one is refused.
- What is planned agrees with what real tiny runs count.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_post_hook
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.cli.recipes import plan_view
from mixfluence.errors import DataError, MixfluenceError, RecipeError
from mixfluence.experiment import run
from mixfluence.influence import Probe
from mixfluence.plan import Plan, plan_run, relative_rate
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import RECIPES, load_recipe
from tests.test_experiment import recipe_path
from tests.training.runs import start_processes

__all__ = ["recipe_path"]

# Nothing of it is on any machine.
ELSEWHERE = """\
name: elsewhere
model: {name: nowhere/model}
defaults: {format: pairs, path: "nowhere/{name}.jsonl"}
train: [a, b, c]
dev: [x, y]
training: {steps: 100, batch_size: 64}
"""
SIZES = {"a": 640, "b": 320, "c": 160, "dev.x": 32, "dev.y": 1000}
EVERY_TEN = "update_every: 10, warmup_steps: 10, freeze_below: 0.0"
PROBE = "inner_steps: 2, probe: {{dev_batch_size: 64{}}}"
INHERITED = ", state: inherited"
ALIGNMENT = "alignment: {{dev_batch_size: 64{}}}"


def recipe_of(tmp_path: Path, *changes: str, sizes: dict[str, int] | None = None) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(ELSEWHERE, encoding="utf-8")
    known: dict[str, dict[str, object]] = {"train": {}, "dev": {}}
    for name, rows in (SIZES if sizes is None else sizes).items():
        known["dev" if name.startswith("dev.") else "train"][name.removeprefix("dev.")] = {"published": {"rows": rows}}
    given = [f"{section}={json.dumps(sources)}" for section, sources in known.items()]
    return load_recipe(path, [*given, *changes], files_may_be_missing=True)


def planned(tmp_path: Path, *changes: str, sizes: dict[str, int] | None = None, processes: int = 1) -> Plan:
    return plan_run(recipe_of(tmp_path, *changes, sizes=sizes), processes=processes)


def shown(plan: Plan) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(plan_view(plan))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


# Updates at steps 10, 20 .. 90: nine of them, because none comes after the last step.
@pytest.mark.parametrize(
    ("strategy", "cost", "memory"),
    [
        ("name: static", 100, 0),
        ("name: cooldown", 100, 0),
        ("name: target-only, init: uniform", 100, 0),
        # 3 x 2 steps, and 4 dev evaluations of 1.5 batches, a third of a step each.
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format('')}", 100 + 9 * (6 + 2), 1),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format(INHERITED)}, subset: 2", 100 + 9 * (4 + 1.5), 3),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format(INHERITED)}, reptile: relative", 100 + 9 * 8, 4),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format(INHERITED)}", 100 + 9 * 8, 3),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format(', snapshot: cpu')}, reptile: relative", 100 + 9 * 8, 1),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format(', batch_size: 16')}", 100 + 9 * (1.5 + 2), 1),
        # At steps 89 and 90: after them the learning rate is below a tenth.
        (f"name: inf-dds, update_every: 1, warmup_steps: 89, {PROBE.format('')}", 100 + 2 * 8, 1),
        (f"name: multidds, {EVERY_TEN}, {ALIGNMENT.format('')}", 100 + 9 * (3 + 1.5), 1),
        (f"name: doge, {ALIGNMENT.format('')}", 100 + 9 * 4.5 + 100, 1),
        (f"name: doge, rounds: 2, proxy_steps: 20, {ALIGNMENT.format('')}", 2 * (20 + 4.5) + 100, 1),
        ("name: doremi", 100 + 500 / 3 + 100, 1),
        ("name: doremi, reference_steps: 50, proxy_steps: 30", 50 + 50 + 100, 1),
        ("name: tdro", 100 + 500 / 3 + 100, 1),
        # Sweeps from 10, 30, 50 and 70 with four dev evaluations, and one from 90 whose last would come at 102.
        (
            "name: aioli, update_every: 20, warmup_steps: 10, freeze_below: 0.0, probe: {dev_batch_size: 64}",
            100 + 19 * 0.5,
            0,
        ),
        ("name: odm", 100, 0),
        # Two dev sets have 24 queries and 40 passages each: 128 texts, a batch of 64 rows with two texts each.
        ("name: merge, evaluations: 8, dev_queries: 48, dev_passages: 80", 3 * 33 + 8 / 3, 0),
        ("name: merge, soup: true, expert_steps: 50, dev_queries: 48, dev_passages: 80", 150 + 1 / 3, 0),
        ("name: regmix, proxies: 9, dev_queries: 48, dev_passages: 80", 100 + 9 * (10 + 1 / 3), 0),
        # 1120 rows and 1032 of dev are 33.625 batches.
        ("name: crisp", 100 + 33.625 / 3, 0),
    ],
)
def test_costs_by_hand(tmp_path: Path, strategy: str, cost: float, memory: float) -> None:
    sizes = SIZES | {"dev.a": 9} if "target-only" in strategy else SIZES
    plan = planned(tmp_path, f"strategy={{{strategy}}}", sizes=sizes)
    assert plan.cost == pytest.approx(cost)
    assert plan.times_static == pytest.approx(cost / 100)
    assert plan.sampler_memory == memory
    assert plan.memory == 4 + memory


def test_stages_alike_are_one_line_and_experts_draw_their_own_dataset(tmp_path: Path) -> None:
    merge = planned(tmp_path, "strategy={name: merge, expert_steps: 10, evaluations: 5}")
    # 10 steps of 64 rows.
    assert epochs(merge) == pytest.approx({"a": 1.0, "b": 2.0, "c": 4.0})
    assert merge.concerns == []
    assert "3 stages      expert-a to expert-c, each 10 steps" in shown(merge)
    assert "5 merges scored on dev" in shown(merge)
    regmix = planned(tmp_path, "strategy=regmix")
    assert "proxy-01 to proxy-32, each 10 steps, scored on dev for" in shown(regmix)


def test_a_step_of_several_batches_makes_measuring_cheaper(tmp_path: Path) -> None:
    # A probe's batch is half a step, and dev fills 0.75 steps.
    changes = [f"strategy={{name: inf-dds, {EVERY_TEN}, {PROBE.format('')}}}", "training.gradient_accumulation=2"]
    assert planned(tmp_path, *changes).stages[0].update_cost == pytest.approx(3 * 2 * 0.5 + 4 * 0.25)


def test_the_cost_model_gives_the_known_overheads_of_the_paper_s_settings() -> None:
    assert Probe().round_cost(7, 1, 3, 1, processes=1) / 50 == pytest.approx(0.473, abs=1e-3)
    assert Probe().round_cost(7, 1, 3, 5, processes=1) / 50 == pytest.approx(0.687, abs=1e-3)
    assert Probe().round_cost(8, 0.8, 3, 13, processes=1) / 250 == pytest.approx(0.233, abs=1e-3)


@pytest.mark.parametrize(
    ("strategy", "processes", "update_cost"),
    [
        # Of three datasets one process has two: 2 x 2 steps, and 3 dev evaluations.
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format('')}", 2, 4 + 1.5),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format('')}", 3, 2 + 1),
        # More processes than datasets: the others only evaluate dev once.
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format('')}", 8, 2 + 1),
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format('')}, subset: 2", 2, 2 + 1),
        # A process probes by itself, so that its batches are as they were.
        (f"name: inf-dds, {EVERY_TEN}, {PROBE.format(', batch_size: 16')}", 3, 0.5 + 1),
        # Every process has a part of every gradient, and all rows of dev.
        (f"name: multidds, {EVERY_TEN}, {ALIGNMENT.format('')}", 2, 3 + 1.5),
        # A fourth of c are 40 rows.
        (f"name: multidds, {EVERY_TEN}, {ALIGNMENT.format('')}", 4, 2 + 40 / 64 + 1.5),
        ("name: aioli, update_every: 20, warmup_steps: 10, probe: {dev_batch_size: 64}", 8, 0.5),
    ],
)
def test_updates_of_several_processes_by_hand(
    tmp_path: Path, strategy: str, processes: int, update_cost: float
) -> None:
    plan, alone = (planned(tmp_path, f"strategy={{{strategy}}}", processes=number) for number in (processes, 1))
    assert plan.stages[0].update_cost == pytest.approx(update_cost)
    assert plan.stages[0].updates == alone.stages[0].updates
    assert plan.cost == pytest.approx(100 + plan.stages[0].updates * update_cost)
    # Processes exchange a copy of the gradients.
    assert (plan.sampler_memory, plan.memory) == (alone.sampler_memory, alone.memory + 1)


@pytest.mark.parametrize("strategy", ["static", "doremi", "crisp"])
def test_what_is_not_shared_out_costs_each_process_the_same(tmp_path: Path, strategy: str) -> None:
    alone, together = (planned(tmp_path, f"strategy={strategy}", processes=number) for number in (1, 8))
    assert together.cost == pytest.approx(alone.cost)


def test_several_processes_draw_larger_batches(tmp_path: Path) -> None:
    assert epochs(planned(tmp_path, processes=2)) == pytest.approx(dict.fromkeys("abc", 2 * 6400 / 1120))
    # Each of eight has 20 of c's 160 rows, 40 of b's 320 and 64 of a's 640.
    even = planned(tmp_path, "strategy.init=uniform", processes=8)
    assert epochs(even) == pytest.approx({"a": 51200 / 3 / 640, "b": 100 / 3, "c": 100 / 3})
    assert "c: 160 rows do not fill a batch of 512" in even.concerns
    # Each of three has 3 of c's 10 rows, which makes 9.
    few = planned(tmp_path, "strategy.init=uniform", sizes=SIZES | {"c": 10}, processes=3)
    assert epochs(few)["c"] == pytest.approx(100 / 3 * 0.9)
    # Five passes of batches of 640 - 512 at a time -, 320 and 160 rows.
    with pytest.raises(RecipeError, match="max_epochs allows 16 batches but the run needs 100"):
        planned(tmp_path, "strategy.max_epochs=5", processes=8)


def test_a_plan_says_on_how_many_processes_it_is(tmp_path: Path) -> None:
    together, alone = planned(tmp_path, processes=8), planned(tmp_path)
    assert "elsewhere on 8 processes: static on nowhere/model, 100 steps of 512 rows" in shown(together)
    assert "5 parameter sizes to train with Adam on each process" in shown(together)
    assert "process" not in shown(alone)


def epochs(plan: Plan) -> dict[str, float | None]:
    return {dataset.name: dataset.epochs for dataset in plan.datasets}


def test_epochs_by_hand(tmp_path: Path) -> None:
    assert epochs(planned(tmp_path)) == pytest.approx(dict.fromkeys("abc", 6400 / 1120))
    even = {"a": 6400 / 3 / 640, "b": 6400 / 3 / 320, "c": 6400 / 3 / 160}
    assert epochs(planned(tmp_path, "strategy.init=uniform")) == pytest.approx(even)
    # Half the run even, half by size.
    cooled = planned(tmp_path, "strategy={name: cooldown, hot: .inf}")
    assert cooled.datasets[2].share == pytest.approx((1 / 3 + 1 / 7) / 2)
    # Ten passes over c are 25 batches; the others share what is left.
    held = planned(tmp_path, "strategy={init: uniform, max_epochs: 10}")
    assert epochs(held) == pytest.approx({"a": 3.75, "b": 7.5, "c": 10})
    # A dataset of 16 rows gives batches of 16.
    small = planned(tmp_path, "strategy.init=uniform", sizes=SIZES | {"c": 16})
    assert epochs(small)["c"] == pytest.approx(100 / 3)
    assert epochs(planned(tmp_path, "strategy={name: doremi, reference_steps: 50}"))["a"] == pytest.approx(3200 / 1120)


@pytest.mark.parametrize(
    ("changes", "sizes", "concern"),
    [
        (["strategy.init=uniform"], {"c": 64}, "c: its 64 rows would be seen 33 times"),
        (
            ["strategy.init={temperature: 0.1}"],
            {},
            "c: starts with a probability of 1e-06, so it is practically never drawn",
        ),
        ([], {"c": 63}, "c: 63 rows do not fill a batch of 64"),
        (
            ["strategy={name: inf-dds, warmup_steps: 10}", "training.warmup_steps=40"],
            {},
            "the first update is at step 10, when the learning rate has reached only 25% of its maximum "
            "(it warms up for 40 steps)",
        ),
        (
            ["strategy={name: inf-dds, warmup_steps: 100}"],
            {},
            "no update happens in the 100 steps of the final stage",
        ),
        (
            ["strategy={name: doge, update_every: 50, proxy_steps: 50}"],
            {},
            "no update happens in the 50 steps of the proxy stage",
        ),
        (
            ["strategy={name: multidds}"],
            {"dev.y": 40},
            "dev set y: 40 rows guide sampling, fewer than the 256 that an update asks for",
        ),
        (["strategy=doremi"], {}, "training.steps is 100, but with its stages the run trains for 300 steps"),
        (["test={x: {}}"], {}, "dev.x is the same data as test.x: test scores would be too good"),
        (["dev.x.path=nowhere/a.jsonl"], {}, "dev.x is the same data as train.a: it is trained on"),
    ],
)
def test_each_warning_comes_when_it_should(
    tmp_path: Path, changes: list[str], sizes: dict[str, int], concern: str
) -> None:
    plan = planned(tmp_path, *changes, sizes=SIZES | {"dev.x": 1000} | sizes)
    assert concern in plan.concerns


@pytest.mark.parametrize("strategy", ["static", "inf-dds"])
def test_a_lone_training_set_need_not_be_measured(tmp_path: Path, strategy: str) -> None:
    plan = planned(tmp_path, f"strategy={strategy}", sizes={"a": 640, "dev.x": 1000})
    assert len(plan.concerns) == (plan.cost > plan.recipe.training.steps) == (strategy != "static")


@pytest.mark.parametrize("strategy", ["static", "inf-dds", "multidds", "aioli", "cooldown"])
def test_a_sound_recipe_raises_no_concern(tmp_path: Path, strategy: str) -> None:
    plan = planned(tmp_path, f"strategy={strategy}", sizes=SIZES | {"dev.x": 1000})
    assert plan.concerns == []


def test_halves_leave_half_of_a_given_dev_set(tmp_path: Path) -> None:
    plan = planned(tmp_path, "strategy=inf-dds", "selection={every: 50, dev: halves}")
    assert plan.guides == {"x": 16, "y": 500}


@pytest.mark.parametrize(("missing", "strategy"), [("c", "static"), ("dev.y", "inf-dds")])
def test_absent_data_without_a_published_size_is_refused(tmp_path: Path, missing: str, strategy: str) -> None:
    recipe = recipe_of(tmp_path, f"{missing if '.' in missing else f'train.{missing}'}=", f"strategy={strategy}")
    with pytest.raises(DataError, match=rf"{missing}: nowhere/{missing[-1]}.jsonl.*published\.rows"):
        plan_run(recipe)


@pytest.mark.parametrize(
    "strategy", ["replay, run: nowhere", "inf-dds, init: {file: nowhere.json}", "doremi, init: {file: nowhere.json}"]
)
def test_weights_that_do_not_exist_are_refused(tmp_path: Path, strategy: str) -> None:
    with pytest.raises(MixfluenceError, match=r"^nowhere"):
        planned(tmp_path, f"strategy={{name: {strategy}}}")


def test_a_plan_refuses_what_a_run_refuses_all_at_once(recipe_path: Path) -> None:
    data = recipe_path.parent / "data"
    (data / "semicolons.csv").write_text("question;answer\na;b\n", encoding="utf-8")
    (data / "small" / "qrels" / "test.tsv").write_text("nonsense\n", encoding="utf-8")
    wrong = [
        f"train.odd={{format: pairs, path: {data}/semicolons.csv, columns: {{anchor: query}}}}",
        "training.trainer_args={max_grad_nrm: 1.0, adam_beta1: much}",
        "train.gone={format: pairs, path: gone.jsonl, published: {rows: 5}}",
        "model.name=./nowhere",
    ]
    named = ("max_grad_nrm", "adam_beta1", "nowhere", "train.odd", "small/qrels/test.tsv", "train.gone")
    lines = str(CliRunner().invoke(app, ["recipes", "check", str(recipe_path), *wrong]).exception).split("\n")
    assert [name for name in named if not any(name in line for line in lines)] == []
    assert len(lines) == len(named)
    planned = CliRunner().invoke(app, ["plan", str(recipe_path), *wrong]).exception
    assert "train.gone" not in str(planned), "a plan may be for another machine"
    assert len(str(planned).split("\n")) == len(named) - 1


@pytest.mark.parametrize(
    "change",
    [
        "strategy={name: inf-dds, probe: {metric: distillation}}",
        "strategy={name: inf-dds, probe: {metric: info-nce-hard}}",
        "training.trainer_args={learning_rate_mapping: {nothing_is_named_so: 1.0e-3}}",
    ],
)
def test_a_plan_refuses_what_only_a_trainer_can_tell(recipe_path: Path, change: str) -> None:
    recipe = load_recipe(recipe_path, [change])
    with pytest.raises(MixfluenceError) as refused:
        plan_run(recipe)
    with pytest.raises(MixfluenceError) as stopped:
        run(recipe)
    assert str(refused.value) == str(stopped.value)


def test_a_plan_tries_what_comes_after_training(recipe_path: Path) -> None:
    long = "名" * 100
    source = f"{{path: {recipe_path.parent}/data/small}}"
    with pytest.raises(RecipeError, match="results could not be written"):
        plan_run(load_recipe(recipe_path, [f"test={{{long}: {source}}}"]))


def test_absent_data_is_said_to_be_absent(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.checked.absent == ["train.a", "train.b", "train.c", "dev.x", "dev.y"]
    assert "train.a, train.b, train.c and 2 more: not on this machine" in shown(plan)


def test_a_taken_output_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").touch()
    assert any("--resume" in concern for concern in planned(tmp_path, f"output={tmp_path}").concerns)


def test_clusters_have_no_share_of_a_dataset(tmp_path: Path) -> None:
    plan = planned(tmp_path, "strategy=crisp")
    assert [(dataset.share, dataset.epochs) for dataset in plan.datasets] == [(None, None)] * 3
    assert "from encodings" in shown(plan)
    assert plan.checked.encodings["encoding"][1] == "encodes 2,152 rows with nowhere/model before training"


@pytest.mark.slow
def test_a_plan_times_the_encoding_before_training(recipe_path: Path) -> None:
    plan = plan_run(load_recipe(recipe_path, ["strategy={name: crisp, encoder: wordllama}"]))
    (_, encoding) = plan.checked.encodings["encoding"]
    assert re.match(r"encodes 1\d\d rows with wordllama before training: about [\d.]+ m?s", encoding)


def test_what_the_run_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"floor of 0\.9 for 3 datasets"):
        planned(tmp_path, "strategy.floor=0.9")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_can_be_costed_without_its_data(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(path, files_may_be_missing=True)
    if path.stem == "pydocs":  # counts the docstrings of seven libraries
        return
    if recipe.strategy.name == "replay":
        with pytest.raises(MixfluenceError, match="runs/english13-inf-dds"):
            plan_run(recipe)
        return
    plan = plan_run(recipe)
    assert plan.cost >= recipe.training.steps
    known = [dataset.epochs is not None for dataset in plan.datasets]
    assert known == [not recipe.strategy.clusters] * len(recipe.train)


def test_the_learning_rate_goes_up_and_down_in_a_line() -> None:
    assert [relative_rate(step, 10, 4) for step in (0, 2, 4, 7, 10)] == [0, 0.5, 1, 0.5, 0]
    assert [relative_rate(step, 10, 0) for step in (0, 5, 10)] == [1, 0.5, 0]


def test_planning_loads_without_torch() -> None:
    code = "import sys, mixfluence.cli.recipes, mixfluence.plan; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_names_are_shown_as_text(tmp_path: Path) -> None:
    names = ["[bold]loud[/bold]", "<script>alert(1)</script>"]
    sources = json.dumps({name: {"published": {"rows": 300}} for name in names})
    recipe = recipe_of(tmp_path, f"train={sources}", f"dev={sources}", "strategy=inf-dds")
    text = shown(plan_run(recipe))
    assert all(text.count(name) >= 2 for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "name: inf-dds, update_every: 3, warmup_steps: 2, inner_steps: 2, probe: {state: inherited}",
        "name: inf-dds, update_every: 1, warmup_steps: 0, subset: 2, reptile: relative, freeze_below: 0.5, "
        "probe: {state: inherited}",
        "name: multidds, update_every: 4, warmup_steps: 2, alignment: {preconditioned: true}",
        "name: multidds, update_every: 4, warmup_steps: 12",
        "name: aioli, update_every: 7, warmup_steps: 2, block_steps: 2",
        "name: doge, update_every: 2",
    ],
)
def test_a_real_run_measures_as_often_as_planned(recipe_path: Path, strategy: str) -> None:
    recipe = load_recipe(recipe_path, [f"strategy={{{strategy}}}", "selection=null", "test={}"])
    plan = plan_run(recipe)
    steps = [0]
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(steps[-1] + 1))
    try:
        run(recipe)
    finally:
        hook.remove()
    record = json.loads((recipe.output / "record.json").read_text(encoding="utf-8"))
    for stage in plan.stages:
        probing = record["probing"] if stage.name == "final" else record["stages"][stage.name]["probing"]
        assert probing["rounds"] == stage.updates
        # Beside parameters a snapshot holds step counts, which do not count.
        assert probing["parameter_sizes"] == pytest.approx(stage.memory, abs=0.1)
    assert {name: facts["rows"] for name, facts in record["datasets"].items()} == {
        dataset.name: dataset.rows for dataset in plan.datasets
    }
    if "inf-dds" in strategy:
        # Dev costs 3 evaluations of 20 rows; what else an update costs are steps, which were counted.
        dev = plan.stages[0].updates * 3 * 20 / 8 / 3
        assert steps[-1] == pytest.approx(plan.cost - dev)


def count_steps(recipe_path: Path, changes: list[str]) -> None:
    """Train as one of several processes, and leave how often its optimizer has stepped."""
    steps = [0]
    register_optimizer_step_post_hook(lambda *_: steps.append(steps[-1] + 1))
    run(load_recipe(recipe_path, changes))
    (recipe_path.parent / f"steps-{os.environ['RANK']}").write_text(str(steps[-1]), encoding="utf-8")


@pytest.mark.slow
def test_two_real_processes_do_what_is_planned_for_two(recipe_path: Path) -> None:
    third = f"{{path: {recipe_path.parent}/data/big, split: dev}}"
    changes = [f"train={{big: {{}}, small: {{}}, third: {third}}}", "training.batch_size=16", "selection=null"]
    strategy = "name: inf-dds, init: uniform, update_every: 3, warmup_steps: 2, inner_steps: 2"
    changes += ["test={}", f"strategy={{{strategy}, probe: {{state: inherited}}}}"]
    plan = plan_run(load_recipe(recipe_path, changes), processes=2)
    start_processes(count_steps, recipe_path, changes)
    record = json.loads((recipe_path.parent / "run" / "record.json").read_text(encoding="utf-8"))
    # The process with two of the three datasets evaluates 20 dev rows 3 times; the rest of an update are steps.
    dev = plan.stages[0].updates * 3 * 20 / 16 / 3
    steps = [int((recipe_path.parent / f"steps-{rank}").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert max(steps) == pytest.approx(plan.cost - dev)
    assert min(steps) < max(steps)
    assert record["probing"]["rounds"] == plan.stages[0].updates
    for dataset in plan.datasets:
        facts = record["datasets"][dataset.name]
        assert dataset.share is not None
        assert dataset.epochs == pytest.approx(
            dataset.share * plan.recipe.training.steps * facts["batch_size"] / facts["rows"]
        )


@pytest.mark.parametrize("budget", [0.25, 0.5])
def test_a_plan_keeps_to_the_budget(tmp_path: Path, budget: float) -> None:
    free = planned(tmp_path, "strategy={name: inf-dds, update_every: 1}")
    held = planned(tmp_path, f"strategy={{name: inf-dds, update_every: 1, budget: {budget}}}")
    assert free.times_static > 1 + budget
    assert 1 + budget / 2 < held.times_static <= 1 + budget
