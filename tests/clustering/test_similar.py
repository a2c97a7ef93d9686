"""A start by similarity to the dev sets.

- A dev set gives its share to the datasets on its topic; a large one has little more of it than a small one.
- Every dev set counts the same, and a dataset unlike all of them keeps the uniform part.
- In a recipe any sampler with `init` starts from it; the start is found once, and a resumed run reads it.
- A recipe without dev sets, an impossible share and a script without the data are refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mixfluence.clustering.similar import similar_shares
from mixfluence.data.mixture import Mixture
from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.plan import plan_run
from mixfluence.policy import Similar, softmax
from mixfluence.policy.initial import read_weights
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.runs import read_trace
from mixfluence.strategies import STRATEGIES, InfDDS
from tests.clustering.topics import rows_on, topic_encoder
from tests.recipes import small_recipe
from tests.test_experiment import StopAt, recipe_path

__all__ = ["recipe_path"]

ENCODER = topic_encoder()
# Half of `mixed` is on a; `large` has four times as many rows as `small`, all on b.
POOL = Mixture({"mixed": rows_on("ac" * 30), "small": rows_on("b" * 20), "large": rows_on("b" * 80, seed=3)})


def shares(*targets: str) -> dict[str, float]:
    dev = {f"target{number}": rows_on(topics, seed=9) for number, topics in enumerate(targets)}
    return similar_shares(POOL, dev, ENCODER)


def test_a_dev_set_gives_its_share_to_the_datasets_on_its_topic() -> None:
    assert shares("a" * 10) == pytest.approx({"mixed": 1, "small": 0, "large": 0})
    found = shares("b" * 40)
    assert found["mixed"] == 0
    # By size it would be 0.2.
    assert found["small"] > 0.35


def test_every_dev_set_counts_the_same() -> None:
    assert shares("a" * 10, "b" * 80)["mixed"] == pytest.approx(0.5)


def test_a_dataset_unlike_all_dev_sets_keeps_its_uniform_part() -> None:
    weights = Similar(0.7).weights({"a": 1.0, "b": 0.0, "c": 0.0}).logits({"a": 1, "b": 10, "c": 100})
    assert softmax(weights) == pytest.approx([0.8, 0.1, 0.1])


@pytest.mark.parametrize("name", [name for name, kind in STRATEGIES.items() if "init" in kind.model_fields])
def test_any_sampler_with_a_start_begins_with_it(name: str) -> None:
    recipe = small_recipe(strategy={"name": name, "init": {"similar": 0.5}})
    started = recipe.strategy.starting_from({"a": 1.0, "b": 0.0}).stages(recipe)[0].strategy({})
    started.start({"a": 100, "b": 100})
    assert started.weights() == pytest.approx([1.0, 0.0] if name == "target-only" else [0.75, 0.25])


@pytest.mark.slow
def test_a_resumed_run_reads_its_start_and_equals_the_uninterrupted_one(
    recipe_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ["strategy={name: inf-dds, init: {similar: 0.5}, update_every: 4, warmup_steps: 2}", "test={}"]
    whole = load_recipe(recipe_path, [*changes, f"output={tmp_path / 'whole'}"])
    stopped = load_recipe(recipe_path, [*changes, f"output={tmp_path / 'stopped'}"])
    run(whole)
    found = Similar(0.5).weights(read_weights(whole.output / "start.json")).weights
    assert read_trace(whole.output / "trace.jsonl")[1]["weights"] == pytest.approx(found)
    assert "cluster" in json.loads((whole.output / "record.json").read_text())["seconds"]
    with pytest.raises(KeyboardInterrupt):
        run(stopped, callbacks=[StopAt(7)])
    monkeypatch.delattr("mixfluence.clustering.similar.similar_shares")
    run(stopped, resume=True)
    traces = [
        [{"step": line["step"], "weights": line["weights"]} for line in read_trace(output / "trace.jsonl")[1:]]
        for output in (whole.output, stopped.output)
    ]
    assert traces[0] == traces[1]


def test_the_plan_counts_the_encoded_rows_and_knows_no_shares(recipe_path: Path) -> None:
    plan = plan_run(load_recipe(recipe_path, ["strategy={name: inf-dds, init: similar}"]))
    assert plan.encodings["encoding"][0] > 0
    assert {dataset.share for dataset in plan.datasets} == {None}
    assert plan.stages[-1].update_cost > 0


def test_it_is_read_and_written_as_a_word_or_with_an_encoder() -> None:
    plain = small_recipe(strategy={"name": "inf-dds", "init": "similar"}).strategy
    chosen = small_recipe(strategy={"name": "static", "init": {"similar": 0.5, "encoder": "minilm"}})
    assert plain.similar == Similar()
    assert chosen.strategy.similar == Similar(0.5, "minilm")
    assert "similar: 0.5" in dump_recipe(chosen)
    assert (plain.start_label, chosen.strategy.start_label) == ("similar", "similar 0.5")


def test_it_is_refused_without_dev_sets_without_data_and_for_an_impossible_share() -> None:
    with pytest.raises(ValueError, match=r"strategy\.init"):
        small_recipe(strategy={"name": "static", "init": "similar"}, dev={})
    with pytest.raises(RecipeError, match="similar_shares"):
        InfDDS(init=Similar()).start({"a": 1})
    with pytest.raises(RecipeError, match="similar"):
        Similar(1.0)


def test_samples_are_evenly_spaced_and_small_sets_are_whole() -> None:
    rows = rows_on("abcd" * 25)
    sample = rows.sample(30)
    assert sample.rows["anchor"][:] == rows.rows["anchor"][::4]
    assert rows.sample(100) is rows
    assert sample.fingerprint != rows.fingerprint
    assert np.ptp([len(rows.sample(count)) for count in (25, 30)]) == 0
