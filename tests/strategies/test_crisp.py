"""CRISP as a strategy: it trains a static mixture of clusters and cannot be used without them."""

from __future__ import annotations

import pytest

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row
from mixfluence.errors import RecipeError
from mixfluence.strategies import CRISP, FINAL, Static
from tests.conftest import row_set
from tests.recipes import small_recipe

SIZES = {"pool/0": 500, "pool/1.3": 20, "pool/1": 64}


def test_clusters_are_drawn_by_the_weights_found_whatever_their_sizes() -> None:
    (stage,) = CRISP(max_epochs=4).stages(small_recipe(strategy="crisp"))
    strategy = stage.strategy({"pool/1": 3.0, "pool/0": 0.0, "pool/1.3": 1.0})
    strategy.start(SIZES)
    for progress in (0.0, 0.5, 1.0):
        assert strategy.weights(progress).tolist() == pytest.approx([0.0, 0.25, 0.75])
    assert (stage.name, type(strategy), strategy.max_epochs) == (FINAL, Static, 4)


def test_it_is_refused_where_nothing_was_clustered() -> None:
    with pytest.raises(RecipeError, match="CRISP"):
        CRISP().start(SIZES)


def test_clusters_of_the_pool_need_one_prompt() -> None:
    with pytest.raises(ValueError, match="need one query_prompt"):
        small_recipe(strategy="crisp", train={"a": {"query_prompt": "q: "}, "b": {}})


def test_its_label_has_the_number_of_clusters() -> None:
    assert CRISP(branching=16, levels=2).label == "CRISP-256"


@pytest.mark.parametrize(("encoder", "loaded"), [(None, "the model"), ("minilm", "minilm")])
def test_the_trained_model_gives_the_vectors_unless_another_is_named(
    encoder: str | None, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("mixfluence.encoders.load_encoder", lambda name, **options: asked.append(name))
    monkeypatch.setattr("mixfluence.clustering.partition", lambda *data, **options: None)
    rows = Mixture({"d": row_set(Row("q", "p"))})
    CRISP(encoder=encoder).divide(rows, rows, small_recipe(model={"name": "the model"}), 1)
    assert asked == [loaded]
