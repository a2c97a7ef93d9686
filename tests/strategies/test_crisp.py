"""CRISP as a strategy: the weights of clusters, and nothing that changes.

- Clusters are drawn by the given weights, in the order of the pool, from the first draw to the last.
- The weights must name exactly the clusters there are; an impossible limit is refused.
"""

from __future__ import annotations

import pytest

from mixfluence.errors import RecipeError
from mixfluence.strategies.crisp import CRISP

SIZES = {"pool/0": 500, "pool/1.3": 20, "pool/1": 64}


def test_clusters_are_drawn_by_their_weights_whatever_their_sizes() -> None:
    strategy = CRISP({"pool/1": 3.0, "pool/0": 0.0, "pool/1.3": 1.0}, max_epochs=4)
    strategy.start(SIZES)
    for progress in (0.0, 0.5, 1.0):
        assert strategy.weights(progress).tolist() == pytest.approx([0.0, 0.25, 0.75])
    assert (strategy.max_epochs, strategy.probe, strategy.due(10, 1.0)) == (4, None, False)
    assert strategy.state_dict() == {}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"pool/0": 1.0, "pool/1": 1.0}, "no weight for 'pool/1.3'"),
        (dict.fromkeys(SIZES, 1.0) | {"pool/2": 1.0}, "weight for 'pool/2', which is not a training dataset"),
        (dict.fromkeys(SIZES, 0.0), "at least one weight must be above 0"),
    ],
)
def test_weights_must_fit_the_clusters(weights: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        CRISP(weights).start(SIZES)


def test_a_limit_that_lets_nothing_be_drawn_is_refused() -> None:
    with pytest.raises(RecipeError, match="max_epochs must be above 0, found 0"):
        CRISP({"pool/0": 1.0}, max_epochs=0)
