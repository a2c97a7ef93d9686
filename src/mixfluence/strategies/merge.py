"""Merge: one short run per dataset, whose models are merged by weights that are best on the dev sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import numpy as np

from mixfluence.policy import Vector, Weights
from mixfluence.runs import STAGES_FOLDER
from mixfluence.schema import Count, PathLike, Share
from mixfluence.strategies.base import FINAL, Scoring, Stage, StageResult, Strategy
from mixfluence.strategies.static import Static

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe

# The first trust region of the optimiser and the last: finer differences of weights are noise.
FIRST_RADIUS, LAST_RADIUS = 0.25, 0.01


class Merge(Strategy):
    """Merge experts of the datasets (as MergeMix and OptiMer, 2026) instead of mixing the datasets.

    From the same start one expert is trained per dataset. The result is start + sum_i w_i (expert_i - start), with
    w_i >= 0 and sum_i w_i <= 1, so that the start has the rest. The weights are searched by the mean NDCG@10 of the
    merged model on samples of the dev sets: the start, every expert, the mean of all, and from the best of these
    COBYQA, which needs no gradients. The weights without the start's are also those of a data mixture, in
    `weights.json`.

    Experts do not depend on each other, so that adding a dataset takes one more expert. Prefer `InfDDS` when datasets
    help each other, which experts cannot learn from each other, and `RegMix` when only the mixture is wanted. Merging
    holds for models that stay near their start: keep the experts short.

    Cost: the experts, as many training steps as a static run by default, and one encoding of the dev samples for each
    merge. Memory: 0 parameter sizes on the device; the parameters of all experts in CPU memory.

    Attributes:
        expert_steps: Steps of each expert; by default they share the steps of the run evenly.
        experts: Run folder of an earlier merge. Its experts are used again, so that only those of added datasets are
            trained; model, data and training must be the same.
        soup: Give every expert the same weight instead of searching weights.
        start_share: Share of the start in the merge, against forgetting; None to search it too, 0 in a soup.
        evaluations: Most merges that are scored.
        dev_queries: Queries of each dev set by which merges are scored.
        dev_passages: Passages in the corpus of each dev set, those that are relevant included.
        max_epochs: Cannot be set: an expert draws its dataset until its steps are done.
    """

    title = "Merge"
    needs_dev = True
    name: Literal["merge"] = "merge"
    max_epochs: None = None
    expert_steps: Count | None = None
    experts: PathLike | None = None
    soup: bool = False
    start_share: Share | None = None
    evaluations: Count = 100
    dev_queries: Count = 100
    dev_passages: Count = 500

    @property
    def label(self) -> str:
        return "Soup" if self.soup else self.title

    @property
    def start_label(self) -> str:
        return "experts" if self.start_share is None else f"experts, {self.start_share:g} start"

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.dev_queries, self.dev_passages)

    def stages(self, recipe: Recipe) -> list[Stage]:
        steps = self.expert_steps or max(1, recipe.training.steps // len(recipe.train))
        names = {name: f"expert-{quote(name, safe='')}" for name in recipe.train}
        earlier = {name: self.experts / STAGES_FOLDER / names[name] for name in names} if self.experts else {}
        experts = [Stage(names[name], steps, _drawing(name, recipe), reuse=earlier.get(name)) for name in names]
        final = Stage(
            FINAL, 1 if self.soup else self.evaluations, lambda found: Static(init=Weights(found)), merges=True
        )
        return [*experts, final]

    def conclude(
        self, recipe: Recipe, stages: Mapping[str, StageResult], sizes: Mapping[str, int], rows: int
    ) -> tuple[Mapping[str, float], list[str]]:
        """Return all datasets alike: the mixture follows from the merge."""
        return dict.fromkeys(sizes, 1.0), []

    def merge_weights(self, score: Callable[[Vector], float], models: int) -> Vector:
        soup = np.full(models, 1 / models)
        if self.soup:
            found = with_start(soup, self.start_share or 0.0)
            score(found)
            return found
        if self.start_share is None:
            return search_simplex(score, models + 1, self.evaluations, [with_start(soup, 0.0)])
        share = self.start_share
        found = search_simplex(lambda weights: score(with_start(weights, share)), models, self.evaluations)
        return with_start(found, share)


def with_start(weights: Vector, share: float) -> Vector:
    """Return weights of the start and of other models, which share the rest."""
    return np.concatenate([[share], (1 - share) * weights])


def search_simplex(
    score: Callable[[Vector], float], corners: int, evaluations: int, guesses: Sequence[Vector] = ()
) -> Vector:
    """Return weights of the corners of a simplex with a high score; each different point is scored once.

    Scored are the corners, their mean and the guesses, and then points that COBYQA asks for, from the best of them.
    """
    from scipy.optimize import Bounds, LinearConstraint, minimize

    scores: dict[tuple[float, ...], float] = {}

    def measure(weights: Vector) -> float:
        key = tuple(weights.tolist())
        if key not in scores and len(scores) < evaluations:
            scores[key] = score(weights)
        return scores.get(key, 0.0)

    def best() -> Vector:
        return np.array(max(scores, key=scores.__getitem__))

    for point in (np.full(corners, 1 / corners), *guesses, *np.eye(corners)):
        measure(point)
    left = evaluations - len(scores)
    # A first simplex of the optimiser takes a point per corner.
    if left > corners > 1:
        inside = LinearConstraint(np.ones(corners - 1), ub=1)
        options = {"maxfev": left, "initial_tr_radius": FIRST_RADIUS, "final_tr_radius": LAST_RADIUS}
        # From a corner itself most first steps would leave the simplex.
        first = (best() + 1 / corners) / 2
        minimize(
            lambda x: -measure(_on_simplex(x)),
            first[1:],
            method="COBYQA",
            bounds=Bounds(0, 1),
            constraints=inside,
            options=options,
        )
    return best()


def _on_simplex(free: Vector) -> Vector:
    """Return weights whose all but first are given, moved into the simplex if they lie outside."""
    inside = np.maximum(free, 0.0)
    inside = inside / max(1.0, inside.sum())
    return np.concatenate([[max(0.0, 1.0 - inside.sum())], inside])


def _drawing(name: str, recipe: Recipe) -> Callable[[Mapping[str, float]], Strategy]:
    only = {other: float(other == name) for other in recipe.train}
    return lambda found: Static(init=Weights(only))
