"""Chameleon: leverage scores of the datasets' mean embeddings.

- Scores are those of the formula, computed by hand, whatever the scale and the place of the embeddings.
- A dataset unlike the others is favoured, or the common ones are; datasets all alike are drawn alike.
- On real texts a dataset in other words stands out, and a sample of its rows is enough.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import Row
from mixfluence.errors import RecipeError
from mixfluence.strategies.chameleon import Chameleon, leverage_scores, leverage_weights
from tests.conftest import row_set
from tests.recipes import small_recipe

# Two alike, one unlike them.
MEANS = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


def test_scores_by_hand() -> None:
    # Centred, the Gram matrix is 2/9 of (1, 1, -2)(1, 1, -2)^T, whose only eigenvalue is 12/9 and whose mean diagonal
    # element is 4/9: all scores are shrunk alike, and shared as the squares 1, 1 and 4.
    assert leverage_scores(MEANS).tolist() == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    means = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    # Eigenvalues 8 and 2, each shared by two; the mean diagonal element is 2.5.
    pair, other = 8 / (8 + 2.5) / 2, 2 / (2 + 2.5) / 2
    total = 2 * (pair + other)
    assert leverage_scores(means).tolist() == pytest.approx([pair / total] * 2 + [other / total] * 2)


def test_neither_scale_nor_place_of_embeddings_matters() -> None:
    means = np.random.default_rng(0).standard_normal((5, 8))
    assert leverage_scores(3 * means + 7) == pytest.approx(leverage_scores(means))


def test_unique_or_common_datasets_are_favoured() -> None:
    scores = leverage_scores(MEANS)
    unique, common = leverage_weights(scores, "unique"), leverage_weights(scores, "common")
    assert unique.tolist() == pytest.approx((np.exp(scores / 0.2) / np.exp(scores / 0.2).sum()).tolist())
    assert unique[2] > 0.8
    assert common[2] < common[0] == common[1]
    assert leverage_scores(np.ones((3, 2))).tolist() == pytest.approx([1 / 3] * 3)


def test_a_dataset_in_other_words_stands_out(
    make_static: Callable[[], SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixfluence.encoders.load_encoder", lambda **_: make_static())
    places = {"one": 0, "two": 1, "far": 120}
    mixture = Mixture(
        {
            name: row_set(*(Row(f"w{first + i}", f"w{first + i + 5}") for i in range(40)))
            for name, first in places.items()
        }
    )
    found = Chameleon().divide(mixture, {}, small_recipe(), 8)
    assert list(found.mixture) == list(places)
    assert found.weights["far"] > max(found.weights["one"], found.weights["two"]) + 0.1
    assert sum(found.weights.values()) == pytest.approx(1)
    assert found.shares(found.weights) == pytest.approx(found.weights)
    sampled = Chameleon(rows=20).divide(mixture, {}, small_recipe(), 8)
    assert max(sampled.weights, key=lambda name: sampled.weights[name]) == "far"
    assert sampled.weights != found.weights


def test_it_cannot_start_without_embeddings() -> None:
    with pytest.raises(RecipeError, match="Chameleon"):
        Chameleon().start({"a": 1})
