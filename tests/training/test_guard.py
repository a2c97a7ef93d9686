"""Guards in real runs: a dataset that helps the target and harms the guard gives way to one that only helps less.

- With a guard the mixture moves to the harmless dataset and the guard loses less; without one it does not.
- A run that was stopped and resumed ends as the uninterrupted one: the guard's start is that of step 0.
- Status and page name the guard, checkpoints are selected by the targets alone, and `compare` tells what was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from datasets import Dataset, concatenate_datasets
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.data.reading import read_data
from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.influence import Probe
from mixfluence.policy import UNIFORM
from mixfluence.recipe_yaml import load_recipe
from mixfluence.report.curves import matrix
from mixfluence.report.page import render_page
from mixfluence.runs import read_run, read_trace
from mixfluence.strategies import InfDDS
from mixfluence.training.losses import info_nce
from mixfluence.training.trainer import MixtureMixin
from tests.test_experiment import StopAt, recipe_path
from tests.training.runs import arguments, build
from tests.training.test_inf_dds import mapped

__all__ = ["recipe_path"]
pytestmark = pytest.mark.slow
MakeModel = Callable[[], SentenceTransformer]
STEPS = 40


def datasets() -> dict[str, Dataset]:
    """`sharp` has rows of the target and wrong answers to the guard's queries, `mild` fewer right rows."""
    wrong = mapped(4, 5, first=100, shuffled=True)
    return {
        "sharp": concatenate_datasets([mapped(1, 2), wrong]),
        "mild": concatenate_datasets([mapped(1), mapped(5, 6, shuffled=True)]),
    }


def start_model(model: SentenceTransformer, folder: Path) -> SentenceTransformer:
    """A model that has learned what the guard asks."""
    args = arguments(folder, max_steps=40, learning_rate=0.05, per_device_train_batch_size=16)
    build(model, args, train_dataset={"general": mapped(1, 2, 3, first=100)}, loss=info_nce(model, 0.1)).train()
    return model


def guarded(model: SentenceTransformer, folder: Path, *, share: float | None) -> MixtureMixin:
    strategy = InfDDS(
        init=UNIFORM,
        update_every=4,
        inner_steps=3,
        warmup_steps=4,
        freeze_below=0.0,
        probe=Probe(dev_batch_size=32, state="momentum-free"),
        guard={} if share is None else {"general": share},
    )
    dev = {"target": mapped(3)} | ({} if share is None else {"general": mapped(3, first=100)})
    args = arguments(folder, max_steps=STEPS, learning_rate=0.02, per_device_train_batch_size=16)
    trainer = build(
        model, args, strategy=strategy, train_dataset=datasets(), dev_dataset=dev, loss=info_nce(model, 0.1)
    )
    trainer.train()
    return trainer


def test_the_mixture_moves_to_the_dataset_that_spares_the_guard(make_static: MakeModel, tmp_path: Path) -> None:
    model = start_model(make_static(), tmp_path / "start")
    without = guarded(deepcopy(model), tmp_path / "without", share=None).probabilities()
    patient = guarded(deepcopy(model), tmp_path / "patient", share=1000.0).probabilities()
    held = guarded(deepcopy(model), tmp_path / "held", share=0.02).probabilities()
    traces = {name: read_trace(tmp_path / name / "trace.jsonl") for name in ("patient", "held")}
    worse = {
        name: [line["update"]["guards"]["general"]["worse"] for line in trace if "update" in line][-1]
        for name, trace in traces.items()
    }
    assert without["sharp"] > 0.6
    # A guard that is measured and never acts does not change what the target learns.
    assert patient == without
    assert held["mild"] > 0.6
    assert worse["held"] < worse["patient"]

    # The guard is named where the matrix is shown.
    found = read_run(tmp_path / "held")
    assert set(matrix(found.trace)) == {"target", "general (guard)"}
    assert fmean(matrix(found.trace)["general (guard)"]["sharp"]) < 0
    assert "general (guard)" in render_page([found])
    shown = CliRunner().invoke(app, ["status", str(tmp_path / "held")]).output
    assert "general: " in shown
    assert "2.0% allowed" in shown


def test_a_guard_must_be_a_dev_set(make_static: MakeModel, tmp_path: Path) -> None:
    model = make_static()
    with pytest.raises(RecipeError, match=r"strategy\.guard\.other"):
        build(model, arguments(tmp_path), strategy=InfDDS(guard={"other": 0.1}), dev_dataset={"target": mapped(3)})


def test_a_recipe_with_a_guard_resumes_exactly_and_tells_what_was_lost(recipe_path: Path) -> None:
    values = yaml.safe_load(recipe_path.read_text(encoding="utf-8"))
    values["dev"] = ["small", "big"]
    values["evaluation"] = {"references": True}
    values["strategy"] = {"name": "inf-dds", "update_every": 3, "warmup_steps": 3, "inner_steps": 1}
    values["strategy"] |= {"guard": {"big": 0.0}, "init": "uniform", "freeze_below": 0.0}
    recipe_path.write_text(yaml.safe_dump(values), encoding="utf-8")
    recipe = load_recipe(recipe_path)
    assert [task.name for task in read_data(recipe).selection] == ["small"]
    run(recipe)

    stopped = load_recipe(recipe_path, [f"output={recipe.output.parent / 'stopped'}"])
    with pytest.raises(KeyboardInterrupt):
        run(stopped, callbacks=[StopAt(8)])
    run(stopped, resume=True)
    whole, resumed = (read_run(own.output) for own in (recipe, stopped))
    updates = [[line["update"]["guards"] for line in own.trace if "update" in line] for own in (whole, resumed)]
    assert updates[0] == updates[1]
    assert len(updates[0]) == 3
    assert whole.weights == resumed.weights

    shown = CliRunner().invoke(app, ["compare", str(recipe.output), "--format", "json"])
    first = yaml.safe_load(shown.output)["rows"][0]
    start = next(row for row in yaml.safe_load(shown.output)["rows"] if row["name"].startswith("zero-shot"))
    lost = first["tests"]["big"]["mean"] - start["tests"]["big"]["mean"]
    assert first["guards_vs_start"] == pytest.approx(lost)
    assert start["guards_vs_start"] is None
