"""Non-finite numbers, too little memory, and extreme sizes.

- Whatever a round measures, numbers of any size among it, the weights of every guided sampler stay probabilities.
- A round that runs out of memory leaves everything as it was, and the error names the settings to lower.
- One dataset, a dataset of one row, no dev set, forty datasets, a dev set of two rows and a dev metric that
  never changes: training runs to its end, and what nothing was learned of does not move.
- A dev metric that is not a number moves nothing and is told in the trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from mixfluence.errors import RecipeError
from mixfluence.influence import Alignment, DevBatch, Influences, Measurement, Metric, Probe, info_nce_metric
from mixfluence.policy import UNIFORM, Anchored, PolicyGradient, Rule
from mixfluence.strategies import Aioli, DoGE, InfDDS, MultiDDS, Static, Strategy
from mixfluence.training.trainer import MixtureTrainer
from tests.influence.test_probe import Columns, SmallLearner, all_words, batches, dev_batches, everything
from tests.training.runs import arguments, build, pool
from tests.training.test_inf_dds import EVERY_STEP, updates

pytestmark = pytest.mark.slow

MakeModel = Callable[[], SentenceTransformer]
SIZES = {"a": 1, "b": 10, "c": 10**9}
RULES: list[Rule] = [
    PolicyGradient(step=1.0),
    Anchored(),
]
GUIDED: dict[str, Callable[[], Strategy]] = {
    **{f"inf-dds {type(rule).__name__} {n}": partial(InfDDS, rule=rule) for n, rule in enumerate(RULES)},
    "inf-dds, trusting": lambda: InfDDS(shrink=False, gate=False),
    "multidds": MultiDDS,
    "doge": DoGE,
    "aioli": Aioli,
}
numbers = st.floats(-1e30, 1e30) | st.sampled_from([0.0, 1e-45, 1e30, -1e30])


class Starved(SmallLearner):
    """One whose device has no more memory from some time on."""

    works = True

    def backward(self, batch: Columns) -> None:
        super().backward(batch)
        if not self.works:
            raise torch.OutOfMemoryError("CUDA out of memory.")


@st.composite
def rounds(draw: st.DrawFn) -> Influences:
    """What a round may have measured of three datasets on two targets: some of them failed."""
    probed = draw(st.sets(st.integers(0, 2)))
    failed = {0, 1, 2} - probed
    queries = draw(st.integers(1, 3))
    gains = [
        np.array([[draw(numbers) for _ in range(queries)] for _ in probed]).reshape(len(probed), queries)
        for _ in range(2)
    ]
    base = [draw(numbers | st.sampled_from([math.nan, math.inf]) if not probed else numbers) for _ in range(2)]
    return Influences(
        np.array(sorted(probed), np.int64), np.array(sorted(failed), np.int64), ["x", "y"], np.array(base), gains
    )


@pytest.mark.parametrize("name", sorted(GUIDED))
@settings(max_examples=25)
@given(measured=st.lists(rounds(), min_size=1, max_size=4))
def test_weights_stay_probabilities_whatever_is_measured(name: str, measured: list[Influences]) -> None:
    strategy = GUIDED[name]()
    strategy.start(SIZES)
    for influences in measured:
        strategy.update(influences)
        for weights in (strategy.weights(), strategy.outcome()):
            if weights is not None:
                assert np.isfinite(weights).all()
                assert (weights >= 0).all()
                assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("measurement", "named"),
    [
        (Probe(), "strategy.probe"),
        (Alignment(), "strategy.alignment"),
    ],
)
@pytest.mark.parametrize("place", ["training", "looking"])
def test_short_memory_changes_nothing_and_names_what_to_lower(
    measurement: Measurement, named: str, place: str, make_static: MakeModel
) -> None:
    model = make_static()
    learner = Starved(model, all_words(model))
    metric = info_nce_metric()
    if place == "looking":
        metric = Metric(_starved, higher_is_better=False)
    before = everything(learner)
    learner.works = place != "training"
    with pytest.raises(RecipeError, match=rf"out of memory .* lower {named}\.batch_size or {named}\.dev_batch_size"):
        measurement.meter(learner, metric, None).measure(
            [0, 1], batches(model), dev_batches(model), seed=0, spread=math.inf
        )
    assert everything(learner) == before


def _starved(model: nn.Module, batch: DevBatch) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def rows(first: int, count: int) -> Dataset:
    words = [(first + number) % 100 for number in range(count)]
    return Dataset.from_dict(
        {"anchor": [f"w{word}" for word in words], "positive": [f"w{word + 100}" for word in words]}
    )


def trained(model: SentenceTransformer, folder: Path, **options: Any) -> MixtureTrainer:
    trainer = build(model, arguments(folder, max_steps=3), **options)
    trainer.train()
    assert trainer.state.global_step == 3
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("datasets", [1, 2, 40])
def test_any_number_of_datasets_can_be_probed(datasets: int, make_static: MakeModel, tmp_path: Path) -> None:
    many = {f"d{number}": rows(number, 5) for number in range(datasets)}
    strategy = InfDDS(init=UNIFORM, inner_steps=1, **EVERY_STEP)
    trainer = trained(make_static(), tmp_path, train_dataset=many, dev_dataset={"dev": rows(3, 8)}, strategy=strategy)
    assert sum(trainer.probabilities().values()) == pytest.approx(1)
    assert [len(line["update"]["on_targets"]["dev"]) for line in updates(trainer)] == [datasets] * 2
    if datasets == 1:
        assert trainer.probabilities() == {"d0": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [Static(), InfDDS(init=UNIFORM, **EVERY_STEP), MultiDDS(init=UNIFORM, **EVERY_STEP)]
)
def test_a_dataset_of_one_row_is_drawn_and_measured(
    strategy: Strategy, make_static: MakeModel, tmp_path: Path
) -> None:
    one = {"one": rows(0, 1), "other": rows(20, 9)}
    trainer = trained(make_static(), tmp_path, train_dataset=one, dev_dataset={"dev": rows(40, 9)}, strategy=strategy)
    assert all(math.isfinite(weight) for weight in trainer.probabilities().values())


@pytest.mark.slow
def test_without_a_dev_set_training_needs_none(make_static: MakeModel, tmp_path: Path) -> None:
    assert sum(trained(make_static(), tmp_path, strategy=Static()).probabilities().values()) == pytest.approx(1)


@pytest.mark.slow
def test_a_dev_set_of_two_rows_is_enough(make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(init=UNIFORM, **EVERY_STEP)
    trainer = trained(make_static(), tmp_path, dev_dataset={"dev": rows(0, 2)}, strategy=strategy)
    assert [line["update"]["rows"] for line in updates(trainer)] == [{"dev": 2}] * 2


def constant(value: float) -> Metric:
    return Metric(lambda model, batch: torch.full((3,), value), higher_is_better=True)


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.5, math.nan, math.inf])
def test_a_dev_metric_that_says_nothing_moves_nothing(value: float, make_static: MakeModel, tmp_path: Path) -> None:
    strategy = InfDDS(init=UNIFORM, probe=Probe(metric=constant(value)), **EVERY_STEP)
    trainer = trained(make_static(), tmp_path, dev_dataset={"dev": pool()["near"]}, strategy=strategy)
    assert trainer.probabilities() == pytest.approx({"near": 0.5, "far": 0.5})
    failed = [] if math.isfinite(value) else ["near", "far"]
    told = [(line["update"]["failed"], line["update"]["dev"]["dev"]) for line in updates(trainer)]
    assert told == [(failed, value if math.isfinite(value) else None)] * 2
