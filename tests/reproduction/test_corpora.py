"""The study of documents in place of labels: its recipes, and its table."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from mixfluence.recipe_yaml import find_recipe, load_recipe
from reproduction.corpora import METHODS, correlation, recipe_of, tables

TEXT = "The pump runs at night. It stops when the tank is full, and then a lamp on the front panel shows it."


KINDS = ["first-sentence", "crop"]


@pytest.mark.parametrize("pool", ["alone", "pool"])
def test_only_what_guides_differs(tmp_path: Path, pool: str) -> None:
    names = list(load_recipe(find_recipe("english13"), files_may_be_missing=True).train)
    for name in names:
        (tmp_path / "english" / name).mkdir(parents=True)
    documents = [{"_id": i, "text": f"{TEXT} Its number is {i}."} for i in range(90)]
    (tmp_path / "english" / "covidqa" / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    options = Namespace(data=tmp_path, model="minilm", steps=5, set=[])
    job = {"setting": f"covidqa {pool}", "seed": 1}
    recipes = {
        method: recipe_of(job | {"method": method, "strategy": strategy}, tmp_path, options)
        for method, strategy in METHODS.items()
    }
    others = [name for name in names if name != "covidqa"] if pool == "pool" else []
    for recipe in recipes.values():
        assert list(recipe.train) == [*KINDS, *others]
        assert recipe.train == recipes["uniform"].train
        assert list(recipe.test) == ["covidqa"]
        assert list(recipe.warnings()) == []
    assert list(recipes["labelled"].dev) == ["covidqa"]
    guides = recipes["documents"].dev
    trained = {text for kind in KINDS for text in recipes["documents"].train[kind].read_rows().rows["positive"]}
    held_out = {text for source in guides.values() for text in source.read_rows().rows["positive"]}
    assert held_out
    assert not trained & held_out


def test_the_tables_have_scores_and_agreement() -> None:
    influences = {
        "labelled": [{"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.0, "b": -1.5, "c": -9.0}],
        "documents": [{"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 0.0, "b": 0.0, "c": 0.0}],
    }
    scores = {"uniform": 0.5, "labelled": 0.53, "documents": 0.5}
    lines = [
        {
            "setting": "covidqa pool",
            "method": method,
            "seed": seed,
            "scores": {"covidqa": score + seed * (score - 0.4) / 100},
            "influences": influences.get(method, []),
            "references": {"bm25": 0.6, "zero-shot": 0.4},
        }
        for method, score in scores.items()
        for seed in range(3)
    ]
    found = list(tables(lines))
    (row,) = (line for line in found if line.startswith("| covidqa | 60.0 | 40.0 |"))
    assert row.count("50.1 ±") == 2
    assert row.count("53.1 ±") == 1
    (gain,) = (line for line in found if line.startswith("| ahead of uniform"))
    assert "+3.0 (p = " in gain
    assert "| covidqa | -1.00 | +1.00 | +1.00 |" in found
    assert correlation({"a": 1.0, "b": 2.0}, {"b": 5.0, "a": 4.0}) == pytest.approx(1)
