"""The contract between a sampler and the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mixfluence.errors import RecipeError
from mixfluence.influence import Probing
from mixfluence.influence.settings import FORWARD
from mixfluence.policy import Vector
from mixfluence.runs import RECORD_FILE
from mixfluence.schema import Positive, Section

if TYPE_CHECKING:
    from mixfluence.clustering import Partition
    from mixfluence.data.mixture import Mixture
    from mixfluence.influence import Influences, RoundCost
    from mixfluence.recipe import Recipe, TrainingSection

FINAL = "final"


@dataclass(frozen=True)
class Stage:
    """One of the training runs that a method consists of.

    Attributes:
        name: `final` for the last one, whose model is the result.
        steps: Training steps.
        strategy: Returns its sampler, given the mixture found by the stage or clustering before it.
        against: The stage whose model is the reference for the losses of this one; None for plain training.
        scored: Whether its model is scored on the dev sets once it is trained; see `Strategy.scoring`.
        merges: For the last one: its steps do not train. Each merges the models of the stages before it by other
            weights and scores the result on the dev sets; see `Strategy.merge_weights`.
        reuse: Folder of the same stage in an earlier run, which is copied if it is finished; see `reused`.
    """

    name: str
    steps: int
    strategy: Callable[[Mapping[str, float]], Strategy]
    against: str | None = None
    scored: bool = False
    merges: bool = False
    reuse: Path | None = None

    @property
    def reused(self) -> bool:
        """Whether an earlier run has finished this stage, so that nothing is trained."""
        return self.reuse is not None and (self.reuse / RECORD_FILE).exists()

    @property
    def step_cost(self) -> float:
        """Cost of a step in plain training steps; with a reference, it and the model also run without dropout."""
        return 1 + 2 * FORWARD if self.against else 1.0

    def warmup_steps(self, training: TrainingSection) -> int:
        """Return the steps of warm-up: the same share of the stage as of the run, if the stage is shorter."""
        return training.warmup_steps * min(self.steps, training.steps) // training.steps


@dataclass(frozen=True)
class StageResult:
    """A finished stage: the mixture that it found or trained on, and NDCG@10 by dev set if it is `scored`."""

    found: Mapping[str, float]
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Scoring:
    """How models are scored: by so many queries, in corpora of so many passages, which the dev sets share evenly."""

    queries: int
    passages: int

    def shares(self, dev_sets: int) -> tuple[int, int]:
        """Return the queries and passages of each dev set."""
        return max(1, self.queries // dev_sets), max(1, self.passages // dev_sets)


class Strategy(Section):
    """Decides how likely each dataset is to give the next batch.

    The annotated fields of a strategy are its keys in a recipe. A strategy sees sizes and measurements, never the
    trainer or the model. The trainer calls `start` once, asks `weights` before every draw, and saves `state_dict` with
    each checkpoint. A strategy with `probing` is asked after every step whether a round is `due`, and gets the
    measured influences by `update`. State is kept in attributes that begin with an underscore.

    Attributes:
        name: The word for it in recipes, a `Literal` in subclasses.
        title: Its name in tables; the class name if empty.
        needs_dev: Whether it cannot work without a dev set.
        baseline: Whether tables give the cost of other methods relative to it.
        learns_from_loss: Whether it is told the loss of every batch; see `observe`.
        saved: Names of attributes, without their underscore, that a checkpoint keeps: vectors, numbers, lists, or
            objects with `state_dict` and `load_state_dict`.
        own_negatives_only: For a stage trained against a reference: whether losses compare a query with its row's
            own passages alone, where rows have hard negatives.
        max_epochs: Most passes over any dataset, None for no limit; what a dataset may no longer take goes to the
            others.
    """

    title: ClassVar[str] = ""
    needs_dev: ClassVar[bool] = False
    baseline: ClassVar[bool] = False
    learns_from_loss: ClassVar[bool] = False
    saved: ClassVar[tuple[str, ...]] = ()
    own_negatives_only: ClassVar[bool] = False
    name: str = ""
    max_epochs: Positive | None = None

    # What recipes, plans, tables and experiments ask.

    @property
    def label(self) -> str:
        """The title, with what distinguishes variants."""
        return self.title or type(self).__name__

    @property
    def start_label(self) -> str:
        """A short description of the initial distribution."""
        init = getattr(self, "init", None)
        return init.label if init else ""

    @property
    def clusters(self) -> bool:
        """Whether it samples what `divide` returns, such as clusters of the pool, instead of the datasets."""
        return False

    @property
    def guards(self) -> Mapping[str, float]:
        """Dev sets that are not targets, and the share of its metric that each may lose."""
        return {}

    def check_guards(self, dev: Collection[str]) -> None:
        """Raise a ValueError if a guard is not a dev set, or if no dev set is left as a target."""
        if unknown := [name for name in self.guards if name not in dev]:
            raise ValueError(f"strategy.guard.{unknown[0]}: expected one of the dev sets {', '.join(dev)}")
        if self.guards and len(self.guards) == len(dev):
            raise ValueError("strategy.guard: needs at least one other dev set as the target")

    def check(self, recipe: Recipe) -> None:
        """Raise a ValueError if the strategy cannot work in a recipe."""
        if self.needs_dev and not recipe.dev:
            raise ValueError(f"strategy: {self.name} needs at least one dev set")
        self.check_guards(recipe.dev)

    def stages(self, recipe: Recipe) -> list[Stage]:
        """Return the training runs of the method, in order."""
        return [Stage(FINAL, recipe.training.steps, lambda found: self.for_targets(recipe.dev))]

    @property
    def scoring(self) -> Scoring | None:
        """How models of stages are scored on the dev sets; None for a method that compares none."""
        return None

    def conclude(
        self, recipe: Recipe, stages: Mapping[str, StageResult], sizes: Mapping[str, int], rows: int
    ) -> tuple[Mapping[str, float], list[str]]:
        """Return the mixture for the last stage and sentences about it for the record.

        Args:
            recipe: The recipe.
            stages: The stages before it, by name.
            sizes: Rows of each dataset.
            rows: Rows that the last stage draws.
        """
        return list(stages.values())[-1].found, []

    def merge_weights(self, score: Callable[[Vector], float], models: int) -> Vector:
        """Return the best weights of the start and of the stages' models, in this order, for a stage that `merges`.

        `score` returns the mean NDCG@10 on the dev sets of the model merged by such weights.
        """
        raise RecipeError(f"{self.label}: merges no models")

    def divide(self, mixture: Mixture, targets: Mapping[str, Any], recipe: Recipe, least_rows: int) -> Partition:
        """Return clusters of the pool, of at least so many rows, and their weights, for a strategy with `clusters`."""
        raise RecipeError(f"{self.label}: samples datasets, not clusters")

    def encoded_rows(self, train: Mapping[str, int], dev: Mapping[str, int]) -> int:
        """Return how many rows are encoded before training, given the sizes of the datasets."""
        return 0

    # What the trainer asks.

    def for_targets(self, dev: Collection[str]) -> Strategy:
        """Return the strategy for a run with these dev sets: itself, unless it has to know their names."""
        return self

    @property
    def probing(self) -> Probing | None:
        """How datasets are measured; None for a strategy that needs no measurement."""
        return None

    def start(self, sizes: Mapping[str, int]) -> None:
        """Reset the state. Names and sizes of the datasets are in the order of every later vector."""
        if type(self).stages is not Strategy.stages:
            raise RecipeError(f"{self.label}: consists of several runs, so it works in recipes only")
        raise RecipeError(f"{self.label}: a strategy must define start and weights")

    def weights(self, progress: float = 0.0) -> Vector:
        """Return the probability of each dataset, after a share of the run's batches has been drawn."""
        raise RecipeError(f"{self.label}: a strategy must define start and weights")

    def outcome(self) -> Vector | None:
        """Return the mixture that a later run should train on; None for a strategy that does not look for one."""
        return None

    def due(self, step: int, relative_rate: float) -> bool:
        """Return whether datasets should be measured after so many steps.

        `relative_rate` is the learning rate of the next step, divided by the maximum of the schedule.
        """
        return False

    def measuring_limit(self, steps: int) -> float:
        """Return the most that measuring should cost in a run of so many steps, in training steps."""
        return inf

    def space_rounds(self, cost: RoundCost, steps: int) -> int:
        """Decide, before a run of so many steps, when to measure; return the most rows of each target per round."""
        assert self.probing is not None
        return self.probing.method.dev_batch_size

    def candidates(self) -> NDArray[np.int64]:
        """Return the datasets worth measuring, those that may be drawn; with none, only dev is measured."""
        return np.flatnonzero(self.weights() > 0)

    def update(self, influences: Influences) -> dict[str, Any]:
        """Use a round of measurements; return values for the trace by name, lists with one per measured dataset."""
        return {}

    def observe(self, dataset: int, loss: float) -> None:
        """Use the loss of the batch that was just trained on, for a strategy with `learns_from_loss`."""

    def weigh(self, dataset: int, losses: Vector, reference: Vector) -> float:
        """Return the factor of the loss of a dataset's batch, in a stage trained against a reference.

        It is given the loss of each query, and that under the reference with the same negatives.
        """
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as JSON values: the `saved` attributes."""
        return {name: _to_json(getattr(self, f"_{name}")) for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; called after `start`."""
        if state and not self.saved:
            raise ValueError(f"{type(self).__name__} keeps no state, found {sorted(state)}")
        for name in self.saved:
            setattr(self, f"_{name}", _from_json(state[name], getattr(self, f"_{name}")))


def _to_json(value: Any) -> Any:
    """Return an array as a list, with None for numbers that are not finite; the state or a copy of other values."""
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if not isinstance(value, np.ndarray):
        return copy(value)
    return [number if isfinite(number) else None for number in value.tolist()]


def _from_json(value: Any, started: Any) -> Any:
    """Return what `_to_json` was given: numbers that are not finite are as at the start."""
    if hasattr(started, "load_state_dict"):
        started.load_state_dict(value)
        return started
    if not isinstance(started, np.ndarray):
        return value
    pairs = zip(value, started.tolist(), strict=True)
    return np.array([before if now is None else now for now, before in pairs])


def check_faiss() -> None:
    """Refuse to cluster without the library for it."""
    if find_spec("faiss") is None:
        raise RecipeError("clustering needs faiss: pip install 'mixfluence[crisp]'")


def load_named_encoder(name: str | None, recipe: Recipe) -> Any:
    """Load the encoder that a strategy names, or else the model that is trained."""
    from mixfluence.encoders import load_encoder

    return load_encoder(name) if name else load_encoder(**recipe.model.model_dump())
