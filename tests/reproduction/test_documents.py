"""The study of documents in place of labels: its recipes, and its table."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from mixfluence.recipe_yaml import find_recipe, load_recipe
from reproduction.documents import KINDS, METHODS, correlation, recipe_of, tables

TEXT = "The pump runs at night. It stops when the tank is full, and then a lamp on the front panel shows it."


def test_only_what_guides_differs(tmp_path: Path) -> None:
    names = list(load_recipe(find_recipe("english13"), files_may_be_missing=True).train)
    for name in names:
        (tmp_path / "english" / name).mkdir(parents=True)
    documents = [{"_id": i, "text": f"{TEXT} Its number is {i}."} for i in range(30)]
    (tmp_path / "english" / "covidqa" / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    options = Namespace(data=tmp_path, model="minilm", steps=5)
    recipes = {
        method: recipe_of({"setting": "covidqa", "method": method, "strategy": strategy, "seed": 1}, tmp_path, options)
        for method, strategy in METHODS.items()
    }
    for recipe in recipes.values():
        assert list(recipe.train) == [*KINDS, *(name for name in names if name != "covidqa")]
        assert recipe.train == recipes["uniform"].train
        assert list(recipe.test) == ["covidqa"]
        assert list(recipe.doubts()) == []
    assert list(recipes["labelled"].dev) == ["covidqa"]
    guides = recipes["documents"].dev
    trained = {text for kind in KINDS for text in recipes["documents"].train[kind].read_rows().rows["positive"]}
    held_out = {text for source in guides.values() for text in source.read_rows().rows["positive"]}
    assert held_out
    assert not trained & held_out


def test_the_table_has_scores_and_agreement() -> None:
    influences = {"labelled": {"a": 1.0, "b": 2.0, "c": 3.0}, "documents": {"a": 3.0, "b": 2.0, "c": 1.0}}
    lines = [
        {"setting": "covidqa", "method": m, "seed": 0, "scores": {"covidqa": 0.5}, "influences": influences.get(m, {})}
        for m in METHODS
    ]
    row = list(tables(lines))[-1]
    assert row.count("50.0") == 3
    assert "-1.0" in row
    assert correlation(influences["labelled"], influences["labelled"]) == 1
