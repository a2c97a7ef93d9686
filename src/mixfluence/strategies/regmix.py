"""RegMix: a regression over many short runs on random mixtures predicts the best mixture."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from mixfluence.errors import RecipeError
from mixfluence.policy import UNIFORM, InitialField, Vector, cap, softmax
from mixfluence.policy.initial import read_weights
from mixfluence.schema import Count, PathLike, WholeNumber
from mixfluence.strategies.base import Scoring, Stage, StageResult, Strategy
from mixfluence.strategies.static import final_stage

if TYPE_CHECKING:
    from mixfluence.policy.regression import Fit
    from mixfluence.recipe import Recipe

logger = logging.getLogger(__name__)

# Concentrations of the Dirichlet distributions that mixtures are drawn from, as published: the lowest give mixtures of
# a few datasets, the highest mixtures like the start.
STRENGTHS = np.geomspace(0.1, 5.0, 15)
# Mixtures whose scores are predicted, and how many of the best are averaged.
CANDIDATES, BEST = 50_000, 100


class RegMix(Strategy):
    """Data mixture as regression (Liu et al., ICLR 2025), with the log-linear law of Olmix (Chen et al. 2026).

    A swarm of short proxy runs is trained, the first on the start and each of the others on a mixture drawn around it.
    NDCG@10 of their models on samples of the dev sets is regressed on the mixtures, for each dev set: by
    1 - NDCG@10 = c + exp(a . p), and by gradient boosting. The regression that predicts held-out proxies better, a
    quarter of them at a time, is fitted to all. The best mixture is the mean of the best predicted of many random
    mixtures that keep the epoch limit. The final run trains on start + R2 (best - start), where R2 is the share of the
    variance of held-out proxies that is predicted: a regression that predicts nothing leaves the start. R2 is noted in
    the record.

    Proxies do not depend on each other, and one search serves any number of final runs. Prefer `Merge` when a proxy
    per mixture costs too much, and `InfDDS` when the best mixture changes during training. A short proxy favours what
    is learned fast.

    Cost with the defaults: over 4 training steps per step of the final run, and an encoding of the dev samples for
    each proxy. Memory: 0 parameter sizes.

    Attributes:
        init: The distribution that mixtures are drawn around. A dataset of weight zero is never drawn.
        proxies: Proxy runs; at least three times as many as datasets are advisable.
        proxy_steps: Steps of a proxy run; a tenth of the final run if None.
        reuse: Weights of an earlier mixture, `weights.json` of its run. Its datasets keep their ratios, and only their
            sum and the weights of added datasets are searched; datasets that were dropped are left out.
        dev_queries: Queries by which proxies are scored; the dev sets share them evenly.
        dev_passages: Passages that these queries search, shared likewise, those that are relevant included.
        max_epochs: Most passes over any dataset in the final run.
    """

    title = "RegMix"
    needs_dev = True
    name: Literal["regmix"] = "regmix"
    init: InitialField = UNIFORM
    proxies: Annotated[int, Field(ge=8, lt=10_000)] = 32
    proxy_steps: Count | None = None
    reuse: PathLike | None = None
    dev_queries: Count = 500
    dev_passages: Count = 2_500

    @property
    def start_label(self) -> str:
        return f"proxies, {self.init.label}"

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.dev_queries, self.dev_passages)

    def stages(self, recipe: Recipe) -> list[Stage]:
        steps = recipe.training.steps
        digits, short = len(str(self.proxies)), self.proxy_steps or max(1, steps // 10)
        proxies = [
            Stage(f"proxy-{n + 1:0{digits}}", short, partial(self._proxy, recipe.seed, n), scored=True)
            for n in range(self.proxies)
        ]
        return [*proxies, final_stage(steps, max_epochs=self.max_epochs)]

    def conclude(
        self, recipe: Recipe, stages: Mapping[str, StageResult], sizes: Mapping[str, int], rows: int
    ) -> tuple[Mapping[str, float], list[str]]:
        """Return the mixture with the best prediction, and how good the prediction is."""
        from mixfluence.policy.regression import best_fit

        mixtures = np.array([[stage.found[name] for name in sizes] for stage in stages.values()])
        scores = np.array([list(stage.scores.values()) for stage in stages.values()])
        others = self._proxy(recipe.seed, self.proxies).mixtures(sizes, CANDIDATES)
        limits = np.ones(len(sizes))
        if self.max_epochs is not None:
            limits = self.max_epochs * np.array(list(sizes.values())) / rows
        fit = best_fit(mixtures, scores)
        best, start = best_mixture(fit, np.concatenate([mixtures, others]), limits), mixtures[0]
        trust = min(max(fit.r2, 0.0), 1.0)
        found = cap(start + trust * (best - start), limits)
        predicted, measured = float(fit.predict(found[None])[0]), scores.mean(axis=1).max()
        note = f"RegMix: {fit.quality}; predicted dev NDCG@10 {predicted:.4f}, best proxy {measured:.4f}"
        if not trust:
            note += "; the mixture is the start, because no regression predicts held-out proxies"
        (logger.info if trust else logger.warning)("%s", note)
        return dict(zip(sizes, found.tolist(), strict=True)), [note]

    def _proxy(self, seed: int, number: int, found: Mapping[str, float] | None = None) -> Proxy:
        return Proxy(around=self.init, seed=seed, number=number, reuse=self.reuse)


class Proxy(Strategy):
    """Static sampling of a random mixture around a start: of a Dirichlet distribution whose mean is the start.

    Attributes:
        around: The start.
        seed: Seed of all mixtures.
        number: Which of them; 0 is the start itself.
        reuse: Weights of datasets that keep their ratios.
    """

    around: InitialField
    seed: WholeNumber
    number: WholeNumber
    reuse: PathLike | None = None

    def start(self, sizes: Mapping[str, int]) -> None:
        self._weights = np.asarray(self.mixtures(sizes, 1)[0])

    def weights(self, progress: float = 0.0) -> Vector:
        return self._weights

    def mixtures(self, sizes: Mapping[str, int], count: int) -> Vector:
        """Return several mixtures of this number, one per row."""
        start = softmax(self.around.logits(sizes))
        groups = _groups(start, list(sizes), read_weights(self.reuse) if self.reuse else {})
        mean = groups.sum(axis=1)
        if len(groups) == 1:
            fixed = ", ".join(f"{name}: {weight:.4g}" for name, weight in zip(sizes, groups[0], strict=True))
            instead = f"train on it with strategy={{init: {{weights: {{{fixed}}}}}}}"
            raise RecipeError(f"strategy: only one mixture is possible, so regmix has nothing to search; {instead}")
        ratios = groups / mean[:, None]
        if self.number == 0:
            return np.repeat((mean @ ratios)[None], count, axis=0)
        rng = np.random.default_rng([self.seed, self.number])
        drawn = np.array([rng.dirichlet(mean * strength) for strength in rng.choice(STRENGTHS, count)])
        return np.asarray(drawn @ ratios)


def _groups(start: Vector, names: Sequence[str], kept: Mapping[str, float]) -> Vector:
    """Return groups of datasets whose ratios are fixed, one per row, with the weight of each dataset."""
    rows = [
        np.where(np.arange(len(names)) == place, start, 0.0) for place, name in enumerate(names) if name not in kept
    ]
    shares = np.array([kept.get(name, 0.0) for name in names])
    if shares.any():
        together = start[[name in kept for name in names]].sum()
        rows.insert(0, together * shares / shares.sum())
    return np.array([row for row in rows if row.any()])


def best_mixture(fit: Fit, candidates: Vector, limits: Vector) -> Vector:
    """Return the mean of the candidates with the highest prediction, of those within the limits.

    If there are none, those that exceed the limits least.
    """
    excess = np.maximum(candidates - limits, 0.0).sum(axis=1)
    allowed = candidates[excess <= max(0.0, np.sort(excess)[BEST - 1])]
    best = np.argsort(-fit.predict(allowed), kind="stable")[:BEST]
    return np.asarray(allowed[best].mean(axis=0))
