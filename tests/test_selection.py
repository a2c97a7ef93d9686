"""Rows selected by the similarity of their gradients to those of dev sets.

- Gradients in closed form are those of autograd on a linear layer after the encoder.
- Of a dataset with shuffled labels the clean rows are kept, also if only one of two dev sets wants them.
- The same rows are kept again, whatever the order of datasets; another dev set keeps others.
- A run trains on the selected rows only, records them, resumes bitwise, and a plan tells rows and cost.
- Too few rows are refused with the name of the dataset.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.nn.functional import cosine_similarity, normalize
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row, RowSet
from mixfluence.errors import DataError, RecipeError
from mixfluence.experiment import run
from mixfluence.plan import plan_run
from mixfluence.recipe_yaml import load_recipe
from mixfluence.selection import RowGradients, select_rows, unit_mean
from tests.conftest import row_set
from tests.test_experiment import StopAt, recipe_path

__all__ = ["recipe_path"]

Make = Callable[[], SentenceTransformer]
SETTINGS: dict[str, Any] = {"keep": 0.5, "batch_size": 16}


def autograd_gradients(
    queries: torch.Tensor, passages: torch.Tensor, temperature: float, equal: torch.Tensor
) -> torch.Tensor:
    layer = torch.eye(queries.shape[1], dtype=torch.float64, requires_grad=True)
    cosines = cosine_similarity((queries @ layer.T)[:, None], (passages @ layer.T)[None], dim=-1)
    masked = (cosines / temperature).masked_fill(equal & ~torch.eye(len(queries), dtype=torch.bool), -torch.inf)
    losses = -masked.log_softmax(dim=1).diagonal()
    return torch.stack([torch.autograd.grad(loss, layer, retain_graph=True)[0] for loss in losses])


def test_gradients_in_closed_form_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    queries, passages = (normalize(torch.randn(7, 5, dtype=torch.float64), dim=-1) for _ in range(2))
    equal = torch.eye(7, dtype=torch.bool)
    equal[1, 4] = equal[4, 1] = True
    expected = autograd_gradients(queries, passages, 0.1, equal)
    found = RowGradients(queries, passages, 0.1, equal)
    norms = expected.flatten(1).norm(dim=1)
    assert torch.allclose(found.norms(), 0.1 * norms)
    units = expected / norms[:, None, None]
    assert torch.allclose(found.unit_sum(), units.sum(dim=0))
    direction = unit_mean(iter([found]))
    assert torch.allclose(direction, units.sum(dim=0) / units.sum(dim=0).norm())
    assert torch.allclose(found.cosines(direction), (units * direction).sum(dim=(1, 2)))


def test_a_row_without_negatives_has_no_direction() -> None:
    vectors = normalize(torch.randn(2, 4, dtype=torch.float64), dim=-1)
    found = RowGradients(vectors, vectors.flip(0), 0.1, torch.ones(2, 2, dtype=torch.bool))
    assert found.cosines(torch.eye(4, dtype=torch.float64) / 2).tolist() == [0, 0]


def related(model: SentenceTransformer) -> SentenceTransformer:
    """Return a static model in which w<n> and w<n + 100> share half of 64 dimensions, and the others are noise."""
    vectors = torch.randn(201, 64, generator=torch.Generator().manual_seed(0))
    vectors[101:201, :32] = vectors[1:101, :32]
    module = StaticEmbedding(model[0].tokenizer, embedding_weights=vectors)
    return SentenceTransformer(modules=[module], device="cpu")


def pairs(count: int, seed: int, shuffled: int = 0) -> list[Row]:
    """Queries of two words and their answers; the first few have the answers of each other."""
    words = np.random.default_rng(seed).integers(0, 100, (count, 2))
    answers = np.concatenate([np.roll(words[:shuffled], 1, axis=0), words[shuffled:]])
    return [Row(f"w{a} w{b}", f"w{c + 100} w{d + 100}") for (a, b), (c, d) in zip(words, answers, strict=True)]


@pytest.mark.parametrize("targets", [("clean",), ("clean", "shuffled")])
def test_clean_rows_are_kept_and_shuffled_ones_dropped(targets: tuple[str, ...], make_static: Make) -> None:
    rows = pairs(200, 0, shuffled=100)
    dev = {name: row_set(*pairs(100, 1, shuffled=100 if name == "shuffled" else 0)) for name in targets}
    kept, facts = select_rows(Mixture({"half": row_set(*rows)}), dev, related(make_static()), **SETTINGS)
    clean = {row.anchor for row in rows[100:]}
    assert facts["half"][:2] == (100, 200)
    assert len(kept["half"]) == 100
    share = np.mean([anchor in clean for anchor in kept["half"].rows["anchor"]])
    assert share > 0.9


def test_the_same_rows_are_kept_again(make_static: Make) -> None:
    sets = {"one": row_set(*pairs(60, 0)), "two": row_set(*pairs(40, 2))}
    dev = {"a": row_set(*pairs(30, 1)), "b": row_set(*pairs(30, 3))}
    first, _ = select_rows(Mixture(sets), dev, related(make_static()), **SETTINGS)
    turned = dict(reversed(sets.items()))
    again, _ = select_rows(Mixture(turned), dict(reversed(dev.items())), related(make_static()), **SETTINGS)
    assert again.fingerprints == {name: first.fingerprints[name] for name in turned}
    other, _ = select_rows(Mixture(sets), {"a": dev["a"]}, related(make_static()), **SETTINGS)
    assert other["one"].fingerprint != first["one"].fingerprint


def one_of(rows: RowSet, count: int) -> RowSet:
    return rows.take(range(count), f"{rows.fingerprint}-{count}")


def test_too_few_rows_are_refused_by_name(make_static: Make) -> None:
    rows, model = row_set(*pairs(30, 0)), make_static()
    with pytest.raises(DataError, match="few"):
        select_rows(Mixture({"many": rows, "few": one_of(rows, 2)}), {"dev": rows}, model, **SETTINGS)
    with pytest.raises(DataError, match="target"):
        select_rows(Mixture({"many": rows}), {"target": one_of(rows, 1)}, model, **SETTINGS)


def test_a_recipe_needs_a_dev_set_to_select_by(recipe_path: Path) -> None:
    with pytest.raises(RecipeError, match="select: needs"):
        load_recipe(recipe_path, ["select={keep: 0.5}", "dev={}", "selection=null"])
    with pytest.raises(RecipeError, match="keep"):
        load_recipe(recipe_path, ["select={keep: 1.5}"])


@pytest.mark.slow
def test_a_run_trains_on_the_selected_rows_and_resumes_bitwise(recipe_path: Path, tmp_path: Path) -> None:
    keys = ["select={by: alignment, keep: 0.5}", "test={}"]
    whole, broken = (load_recipe(recipe_path, [*keys, f"output={tmp_path / name}"]) for name in ("whole", "broken"))
    run(whole)
    record = json.loads((whole.output / "record.json").read_text(encoding="utf-8"))
    assert {name: (own["kept"], own["rows"]) for name, own in record["select"].items()} == {
        "big": (40, 80),
        "small": (10, 20),
    }
    assert {name: own["rows"] for name, own in record["datasets"].items()} == {"big": 40, "small": 10}
    assert record["seconds"]["select"] > 0
    with pytest.raises(KeyboardInterrupt):
        run(broken, callbacks=[StopAt(8)])
    run(broken, resume=True)
    models = [load_file(recipe.output / "model" / "model.safetensors") for recipe in (whole, broken)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
    with pytest.raises(RecipeError, match="select"):
        run(
            load_recipe(recipe_path, [*keys, f"output={broken.output}", "select.keep=0.4", "training.steps=18"]),
            resume=True,
        )


def test_a_plan_tells_the_rows_that_are_kept_and_the_cost(recipe_path: Path) -> None:
    recipe = load_recipe(recipe_path, ["select={keep: 0.25}"])
    plan = plan_run(recipe)
    assert {dataset.name: dataset.rows for dataset in plan.datasets} == {"big": 20, "small": 5}
    # 100 training rows and half of 20 dev rows, in batches of 8, at a third of a training step.
    assert plan.cost == pytest.approx(12 + 110 / 8 / 3, abs=0.3)
    shown = CliRunner().invoke(app, ["plan", str(recipe_path), "select={keep: 0.25}"]).output
    assert "selecting" in shown
    with pytest.raises(DataError, match="small"):
        plan_run(load_recipe(recipe_path, ["select={keep: 0.05}"]))
