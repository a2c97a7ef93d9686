"""Regressions from mixtures to scores: the log-linear law and gradient boosting, compared on held-out mixtures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr
from sklearn.ensemble import GradientBoostingRegressor

from mixfluence.policy.bounds import Vector

# Residuals beyond this count linearly: a proxy that diverged should not bend the fit.
OUTLIER = 0.02
LEAST_LOSS = 1e-4
# Each mixture is predicted once by a fit to three quarters of the others.
FOLDS = 4

# Predicts a score from each of several mixtures.
Predict = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Fit:
    """A regression of the mean score over targets.

    Attributes:
        name: Its kind.
        predict: Returns the mean score of each of several mixtures.
        r2: Share of the variance of held-out scores that it explains; below 0 it is worse than their mean.
        quality: A sentence with this number and the rank correlation, also of the other regressions.
    """

    name: str
    predict: Predict
    r2: float
    quality: str


def best_fit(mixtures: Vector, scores: Vector) -> Fit:
    """Return the regression that predicts held-out mixtures best, fitted to all.

    Args:
        mixtures: One per row.
        scores: Scores of each on each target, between 0 and 1.
    """
    actual, folds = scores.mean(axis=1), np.arange(len(mixtures)) % FOLDS
    total = ((actual - actual.mean()) ** 2).sum()
    r2, described = {}, []
    for name, fit in REGRESSIONS.items():
        predicted = np.empty(len(mixtures))
        for fold in range(FOLDS):
            held_out = folds == fold
            predict = mean_prediction(fit, mixtures[~held_out], scores[~held_out])
            predicted[held_out] = predict(mixtures[held_out])
        r2[name] = float(1 - ((actual - predicted) ** 2).sum() / total) if total else 0.0
        constant = np.ptp(actual) == 0 or np.ptp(predicted) == 0
        rank = 0.0 if constant else float(spearmanr(actual, predicted).statistic)
        described.append(f"{name} R2 {r2[name]:.2f}, rank correlation {rank:.2f}")
    best = max(r2, key=r2.__getitem__)
    quality = f"{best} regression, on {len(mixtures)} proxies, held out in turn: {'; '.join(described)}"
    return Fit(best, mean_prediction(REGRESSIONS[best], mixtures, scores), r2[best], quality)


def mean_prediction(fit: Callable[[Vector, Vector], Predict], mixtures: Vector, scores: Vector) -> Predict:
    """Fit every target by itself, and return the mean of their predictions."""
    targets = [fit(mixtures, column) for column in scores.T]
    return lambda new: np.asarray(np.mean([predict(new) for predict in targets], axis=0))


def fit_log_linear(mixtures: Vector, scores: Vector) -> Predict:
    """Fit 1 - score = c + exp(a . p) with c >= 0, by least squares from several values of c."""
    loss = np.maximum(1 - scores, LEAST_LOSS)

    def residuals(parameters: Vector) -> Vector:
        return _law(parameters, mixtures) - loss

    fits = []
    for share in (0.1, 0.5, 0.9):
        first = share * loss.min()
        slopes = np.linalg.lstsq(mixtures, np.log(loss - first), rcond=None)[0]
        bounds = [0.0, *np.full(len(slopes), -np.inf)], [1.0, *np.full(len(slopes), np.inf)]
        fits.append(least_squares(residuals, [first, *slopes], bounds=bounds, loss="huber", f_scale=OUTLIER))
    best = min(fits, key=lambda fit: fit.cost).x
    return lambda new: 1 - _law(best, new)


def _law(parameters: Vector, mixtures: Vector) -> Vector:
    return np.asarray(parameters[0] + np.exp(np.minimum(mixtures @ parameters[1:], 1.0)))


def fit_boosting(mixtures: Vector, scores: Vector) -> Predict:
    """Fit boosted trees of depth 3."""
    trees = GradientBoostingRegressor(n_estimators=200, learning_rate=0.05, random_state=0).fit(mixtures, scores)
    return lambda new: np.asarray(trees.predict(new))


REGRESSIONS = {"log-linear": fit_log_linear, "gradient boosting": fit_boosting}
