"""Merge: short runs on single datasets, clusters or mixtures, merged by weights that are best on the dev sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import quote

import numpy as np
from pydantic import Field, model_validator

from mixfluence.errors import RecipeError
from mixfluence.policy import Initial, InitialField, Vector, Weights
from mixfluence.runs import RECORD_FILE, STAGES_FOLDER, read_record
from mixfluence.schema import Count, PathLike, Share
from mixfluence.strategies.base import Scoring, Stage, StageResult, Strategy
from mixfluence.strategies.crisp import CRISP
from mixfluence.strategies.static import Static, final_stage

if TYPE_CHECKING:
    from mixfluence.clustering import Partition
    from mixfluence.data.mixture import Mixture
    from mixfluence.recipe import Recipe

# The first trust region of the optimiser and the last: finer differences of weights are noise.
FIRST_RADIUS, LAST_RADIUS = 0.25, 0.01


class Merge(Strategy):
    """Merge experts of the datasets (as MergeMix and OptiMer, 2026) instead of mixing the datasets.

    From the same start one expert is trained per dataset, or per cluster or mixture of them. The result is
    start + sum_i w_i (expert_i - start), with w_i >= 0 and sum_i w_i <= 1, so that the start has the rest. The weights
    are searched by the mean NDCG@10 of the merged model on samples of the dev sets: the start, every expert, the mean
    of all, and from the best of these COBYQA, which needs no gradients, again and again until it finds nothing better.
    The weights without the start's are also those of a data mixture, in `weights.json`.

    Experts do not depend on each other, so that adding a dataset takes one more expert. Prefer `InfDDS` when datasets
    help each other, which experts cannot learn from each other, and `RegMix` when only the mixture is wanted. Merging
    holds for models that stay near their start: keep the experts short.

    Cost: the experts, as many training steps as a static run by default, and one encoding of the dev samples for each
    merge. Memory: 0 parameter sizes while training; the parameters of all experts while merging,
    in CPU memory if the device has no room.

    Attributes:
        expert_steps: Steps of each expert; by default as many as those of `experts`, or else they share the steps of
            the run evenly.
        experts: Run folder of an earlier merge. Its experts are used again, so that only those of added datasets are
            trained; model, data and training must be the same.
        branching: Train an expert per cluster of the pool, so many in all, in place of one per dataset.
        mixtures: Train an expert per mixture: name -> a start, such as `{flat: uniform, natural: proportional}`. To
            merge finished runs on several mixtures use `mixfluence merge`.
        soup: Give every expert the same weight instead of searching weights.
        start_share: Share of the start in the merge, against forgetting; None to search it too, 0 in a soup.
        evaluations: Most merges that are scored.
        dev_queries: Queries by which merges are scored; the dev sets share them evenly.
        dev_passages: Passages that these queries search, shared likewise, those that are relevant included.
        max_epochs: Cannot be set: an expert draws its dataset until its steps are done.
    """

    title = "Merge"
    needs_dev = True
    name: Literal["merge"] = "merge"
    max_epochs: None = None
    expert_steps: Count | None = None
    experts: PathLike | None = None
    branching: Annotated[int, Field(ge=2, le=64)] | None = None
    mixtures: Annotated[dict[str, InitialField], Field(min_length=1)] | None = None
    soup: bool = False
    start_share: Share | None = None
    evaluations: Count = 300
    dev_queries: Count = 500
    dev_passages: Count = 2_500

    @model_validator(mode="after")
    def _experts_of_one_kind(self) -> Self:
        if sum(given is not None for given in (self.experts, self.branching, self.mixtures)) > 1:
            raise ValueError("give only one of experts, branching and mixtures, which describe different experts")
        return self

    @property
    def label(self) -> str:
        return "Soup" if self.soup else self.title

    @property
    def start_label(self) -> str:
        kind = f"{self.branching} clusters" if self.branching else "mixtures" if self.mixtures else "experts"
        return kind if self.start_share is None else f"{kind}, {self.start_share:g} start"

    @property
    def clusters(self) -> bool:
        return self.branching is not None

    @property
    def _clustering(self) -> CRISP:
        # With smoothing no cluster is left out, however few dev rows it has.
        return CRISP(branching=self.branching or 2, smoothing=1.0)

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if self.clusters:
            self._clustering.check(recipe)

    def divide(self, mixture: Mixture, targets: Mapping[str, Any], recipe: Recipe, least_rows: int) -> Partition:
        found = self._clustering.divide(mixture, targets, recipe, least_rows)
        if len(found.mixture) != self.branching:
            raise RecipeError(f"strategy.branching: only {len(found.mixture)} clusters have enough rows for a batch")
        return found

    def encoded_rows(self, train: Mapping[str, int], dev: Mapping[str, int]) -> int:
        return self._clustering.encoded_rows(train, dev) if self.clusters else 0

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.dev_queries, self.dev_passages)

    def stages(self, recipe: Recipe) -> list[Stage]:
        drawn: dict[str, Callable[[Mapping[str, float]], Strategy]]
        if self.branching:
            drawn = {str(place + 1): partial(_one_cluster, place) for place in range(self.branching)}
        elif self.mixtures:
            drawn = {name: partial(_mixture, init) for name, init in self.mixtures.items()}
        else:
            drawn = {name: partial(_mixture, _only(name, recipe.train)) for name in recipe.train}
        steps = self.expert_steps or self._earlier_steps() or max(1, recipe.training.steps // len(drawn))
        experts = []
        for name, strategy in drawn.items():
            folder = f"expert-{quote(name, safe='')}"
            reuse = self.experts / STAGES_FOLDER / folder if self.experts else None
            experts.append(Stage(folder, steps, strategy, reuse=reuse))
        return [*experts, replace(final_stage(1 if self.soup else self.evaluations), merges=True)]

    def _earlier_steps(self) -> int | None:
        records = sorted((self.experts / STAGES_FOLDER).glob(f"*/{RECORD_FILE}")) if self.experts else []
        return int(read_record(records[0])["steps"]) if records else None

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

    Scored are the corners, their mean and the guesses, and then points that COBYQA asks for, from the best of them,
    again and again as long as it finds better ones.
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
    inside = LinearConstraint(np.ones(corners - 1), ub=1)
    radii = {"initial_tr_radius": FIRST_RADIUS, "final_tr_radius": LAST_RADIUS}
    share = 0.5
    # A first simplex of the optimiser takes a point per corner.
    while (left := evaluations - len(scores)) > corners > 1:
        before = max(scores.values())
        # From a corner itself most first steps would leave the simplex.
        first = (1 - share) * best() + share / corners
        minimize(
            lambda x: -measure(_on_simplex(x)),
            first[1:],
            method="COBYQA",
            bounds=Bounds(0, 1),
            constraints=inside,
            options=radii | {"maxfev": left},
        )
        if max(scores.values()) == before:
            break
        # NDCG is rough: a new start often leads further.
        share = 0.02
    return best()


def _on_simplex(free: Vector) -> Vector:
    """Return weights whose all but first are given, moved into the simplex if they lie outside."""
    inside = np.maximum(free, 0.0)
    inside = inside / max(1.0, inside.sum())
    return np.concatenate([[max(0.0, 1.0 - inside.sum())], inside])


def _mixture(init: Initial, found: Mapping[str, float]) -> Strategy:
    return Static(init=init)


def _one_cluster(place: int, found: Mapping[str, float]) -> Strategy:
    # A plan knows the datasets only, which may be fewer than the clusters.
    return Static(init=_only(list(found)[place % len(found)], found))


def _only(name: str, names: Iterable[str]) -> Weights:
    return Weights({other: float(other == name) for other in names})
