"""Regressions from mixtures to scores.

- A score that follows the log-linear law is predicted by it, also where no mixture was measured, and an outlier does
  not bend it.
- The regression that predicts held-out mixtures better is chosen, and its quality is told.
- Scores that do not depend on the mixture are reported as unpredictable.
"""

from __future__ import annotations

import numpy as np
import pytest

from mixfluence.policy import Vector
from mixfluence.policy.regression import best_fit, fit_log_linear, mean_prediction

RNG = np.random.default_rng(0)
MIXTURES = RNG.dirichlet(np.ones(3), 48)
SLOPES = np.array([[-3.0, -0.5, -1.0], [-0.5, -4.0, -1.0]])


def lawful(mixtures: Vector) -> Vector:
    """NDCG@10 of two targets."""
    return np.asarray(1 - (0.1 + np.exp(mixtures @ SLOPES.T)))


def quadratic(mixtures: Vector) -> Vector:
    """NDCG@10 of a target that is best inside the simplex."""
    return np.asarray(0.8 * (1 - ((mixtures - [0.5, 0.3, 0.2]) ** 2).sum(axis=1, keepdims=True)))


def test_the_law_is_recovered() -> None:
    predict = mean_prediction(fit_log_linear, MIXTURES, lawful(MIXTURES))
    unseen = np.vstack([np.eye(3), RNG.dirichlet(np.full(3, 0.3), 20)])
    assert predict(unseen) == pytest.approx(lawful(unseen).mean(axis=1), abs=1e-3)


def test_an_outlier_does_not_bend_the_law() -> None:
    scores = lawful(MIXTURES)[:, 0].copy()
    scores[5] = 0.0
    assert fit_log_linear(MIXTURES, scores)(np.eye(3)) == pytest.approx(lawful(np.eye(3))[:, 0], abs=0.02)


def test_the_better_regression_is_chosen_and_its_quality_told() -> None:
    law = best_fit(MIXTURES, lawful(MIXTURES))
    assert law.name == "log-linear"
    assert law.r2 > 0.99
    trees = best_fit(MIXTURES, quadratic(MIXTURES))
    assert trees.name == "gradient boosting"
    assert 0.5 < trees.r2 < 1
    for fit in (law, trees):
        assert f"{fit.name} regression, on 48 proxies" in fit.quality
        assert f"{fit.r2:.2f}" in fit.quality
        assert fit.quality.count("rank correlation") == 2


def test_noise_is_reported_as_noise() -> None:
    fit = best_fit(MIXTURES, 0.5 + 0.1 * RNG.standard_normal((48, 1)))
    assert fit.r2 < 0.2
    assert best_fit(MIXTURES, np.full((48, 2), 0.5)).r2 == 0.0
