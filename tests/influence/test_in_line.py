"""Influences are worked out from successive training steps.

- Where the model of the module's docstring holds exactly, so do the influences: for any momentum, rates and numbers of
  batches per step, whatever direction the optimizer brings along.
- With batches that differ, influences are right on average, and their errors are as large as they say.
- They are far closer to the truth than differences between successive evaluations.
- Guards and targets keep their own errors. What cannot be measured is reported as such, and so is short memory.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mixfluence.errors import RecipeError
from mixfluence.influence import DevBatch, Influences, Metric, info_nce_metric
from mixfluence.influence.in_line import Step, StepMeter, influences_of_steps, momentum_of, scale_of

Array = NDArray[np.float64]
Steps = list[Step]
INFLUENCE = np.array([[0.5, -0.1], [0.1, 0.3], [-0.2, 0.2], [0.0, 0.4]])  # of four datasets on two targets


def simulated(
    random: np.random.Generator, momentum: float, *, steps: int = 40, batches: int = 1, noise: float = 0.0
) -> tuple[list[Array], Steps]:
    """Evaluations of three queries per target while an optimizer with momentum trains on datasets at random."""
    drawn = random.integers(0, len(INFLUENCE), (steps, batches))
    rates = random.uniform(0.5, 1.0, steps) * 1e-3
    direction = random.normal(size=2)
    values = [np.array([1.0, 2.0])]
    for datasets, rate in zip(drawn, rates, strict=True):
        effect = (INFLUENCE[datasets] + noise * random.normal(size=(batches, 2))).mean(axis=0)
        direction = momentum * direction + (1 - momentum) * effect
        values.append(values[-1] - rate / rates.max() * direction)
    # Queries differ in their level and in how much they follow the target; their mean is the target's.
    level = np.array([0.1, -0.3, 0.2])
    evals = [np.outer(column, [0.5, 1.0, 1.5]) + level for column in np.array(values).T]
    return evals, [Step(datasets.tolist(), float(rate)) for datasets, rate in zip(drawn, rates, strict=True)]


def measured(evals: list[Array], steps: Steps, momentum: float, sign: int = -1) -> Influences:
    return influences_of_steps(evals, steps, ["one", "two"], momentum=momentum, sign=sign)


def contrasts(values: Array) -> Array:
    return np.asarray(values - values.mean(axis=0))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("batches", [1, 3])
def test_influences_are_exact_if_batches_are_alike(momentum: float, batches: int) -> None:
    evals, steps = simulated(np.random.default_rng(0), momentum, batches=batches)
    found = measured(evals, steps, momentum)
    assert found.probed.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(found.on_targets(), INFLUENCE, atol=1e-6)
    np.testing.assert_allclose(found.gains[0][:, 2], 1.5 * INFLUENCE[:, 0], atol=1e-6)
    assert found.noise is not None
    assert found.noise.max() < 1e-10
    np.testing.assert_allclose(found.base, [values[-1].mean() for values in evals])
    # For a metric of which more is better, the same numbers mean harm.
    harm = measured(evals, steps, momentum, sign=1)
    np.testing.assert_allclose(harm.on_targets(), -INFLUENCE, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_as_large_as_they_say(momentum: float) -> None:
    random = np.random.default_rng(1)
    distances, ratios = [], []
    for _ in range(400):
        evals, steps = simulated(random, momentum, noise=0.2)
        found = measured(evals, steps, momentum)
        assert found.noise is not None
        distances.append(contrasts(found.on_targets()) - contrasts(INFLUENCE))
        ratios.append(distances[-1] ** 2 / found.noise.diagonal(axis1=1, axis2=2))
    bias = np.mean(distances, axis=0)
    assert np.abs(bias).max() < 4 * np.std(distances, axis=0).max() / 400**0.5
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)


def test_they_are_closer_to_the_truth_than_differences_of_evaluations() -> None:
    random = np.random.default_rng(2)
    ours, naive = [], []
    for _ in range(50):
        evals, steps = simulated(random, 0.9, noise=0.2)
        datasets = np.array([step.datasets[0] for step in steps])
        found = measured(evals, steps, 0.9)
        improved = np.stack([-np.diff(values.mean(axis=1)) for values in evals], axis=1)
        plain = np.stack([improved[datasets == dataset].mean(axis=0) for dataset in found.probed])
        truth = contrasts(INFLUENCE[found.probed])
        # The scale of differences is free: only their shape is compared.
        plain = contrasts(plain) * (contrasts(plain) * truth).sum() / (contrasts(plain) ** 2).sum()
        ours.append(((contrasts(found.on_targets()) - truth) ** 2).mean())
        naive.append(((plain - truth) ** 2).mean())
    assert np.mean(ours) < np.mean(naive) / 3


def test_noise_of_batches_is_part_of_the_errors() -> None:
    evals, steps = simulated(np.random.default_rng(3), 0.9, noise=0.2)
    found = measured(evals, steps, 0.9)
    assert found.noise is not None
    assert (found.errors() > np.sqrt(found.noise.diagonal(axis1=1, axis2=2))).all()
    np.testing.assert_array_equal(found.of(["two"]).errors(), found.errors()[:, 1:])


def test_noise_that_targets_share_does_not_cancel_in_their_mean() -> None:
    evals, steps = simulated(np.random.default_rng(3), 0.9, noise=0.2)
    twice = measured([evals[0], evals[0]], steps, 0.9)
    alone = twice.of(["one"])
    # Without the errors of the dev sample, which are of different rows.
    same = [replace(found, gains=[gains[:, 1:2] for gains in found.gains]) for found in (twice, alone)]
    np.testing.assert_allclose(same[0].combine()[1], same[1].combine()[1])


def test_a_dataset_that_was_not_drawn_is_not_measured() -> None:
    evals, steps = simulated(np.random.default_rng(4), 0.9)
    renamed = [step._replace(datasets=[7 if own == 2 else own for own in step.datasets]) for step in steps]
    assert measured(evals, renamed, 0.9).probed.tolist() == [0, 1, 3, 7]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_dataset_that_the_steps_cannot_tell_from_others_is_not_measured(momentum: float) -> None:
    evals, steps = simulated(np.random.default_rng(4), momentum)
    # The direction from before the window fades as that of the first batch does.
    alone = [steps[0]._replace(datasets=[7]), *steps[1:]]
    assert measured(evals, alone, momentum).probed.tolist() == ([0, 1, 2, 3] if momentum else [0, 1, 2, 3, 7])
    together = [step._replace(datasets=[8, 9] if step.datasets == [3] else step.datasets) for step in steps]
    found = measured(evals, together, momentum)
    assert found.probed.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.on_targets(), INFLUENCE[:3], atol=1e-6)
    still = [step._replace(rate=0.0) for step in steps]
    assert measured(evals, still, momentum).probed.tolist() == []


@pytest.mark.parametrize("what", ["not a number", "too few steps"])
def test_what_cannot_be_measured_is_reported(what: str) -> None:
    evals, steps = simulated(np.random.default_rng(5), 0.9)
    if what == "not a number":
        evals[1][7, 0] = np.nan
    else:
        evals, steps = [values[:5] for values in evals], steps[:4]
    found = measured(evals, steps, 0.9)
    assert found.probed.tolist() == []
    assert set(found.failed.tolist()) == {dataset for step in steps for dataset in step.datasets}
    assert found.on_targets().shape == found.errors().shape == (0, 2)


def test_the_scale_of_adams_first_steps_is_taken_out() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=1.0, betas=(0.9, 0.0), eps=0.0)
    evals, steps = [np.zeros((1, 1))], []
    for number in range(1, 31):
        # Without a memory of squares, Adam keeps the sign alone.
        before = weight.item()
        weight.grad = torch.tensor([-1.0 if number % 3 else 1.0])
        optimizer.step()
        evals.append(evals[-1] + weight.item() - before)
        steps.append(Step([int(number % 3 == 0)], 1.0, scale_of(optimizer, number)))
    found = influences_of_steps([np.concatenate(evals)], steps, ["one"], momentum=0.9, sign=1)
    np.testing.assert_allclose(found.on_targets()[:, 0], [1.0, -1.0], atol=1e-4)
    assert scale_of(torch.optim.SGD([weight], momentum=0.9), 1) == 1.0


def test_a_resumed_window_is_where_the_model_is_and_as_precise_as_it_was() -> None:
    learner = SimpleNamespace(optimizer=torch.optim.SGD([nn.Parameter(torch.zeros(1, device="meta"))]))
    meter = StepMeter(cast(Any, learner), info_nce_metric(0.1))
    third = 1 / 3
    state = {"evals": [[[third]]], "steps": []}
    meter.load_state_dict(state)
    assert meter._evals[0][0].device.type == "meta"
    learner.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    meter = StepMeter(cast(Any, learner), info_nce_metric(0.1))
    meter.load_state_dict(state)
    assert meter.state_dict() == state


def test_short_memory_names_a_key_that_there_is() -> None:
    def starved(model: nn.Module, batch: DevBatch) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    model = nn.Linear(2, 2)
    learner = SimpleNamespace(
        model=model, modules=model, optimizer=torch.optim.SGD(model.parameters()), world=1, total=lambda values: values
    )
    meter = StepMeter(cast(Any, learner), Metric(starved, higher_is_better=False))
    with pytest.raises(RecipeError, match=r"out of memory .* lower strategy\.probe\.dev_batch_size$"):
        meter.record([DevBatch("one", [])], [0], 1.0, 1)


@pytest.mark.parametrize(
    ("optimizer", "options", "momentum"),
    [
        (torch.optim.AdamW, {"betas": (0.8, 0.99)}, 0.8),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.7}, 0.7),
        (torch.optim.SGD, {"lr": 0.1}, 0.0),
    ],
)
def test_momentum_is_that_of_the_optimizer(optimizer: Any, options: dict[str, Any], momentum: float) -> None:
    assert momentum_of(optimizer(nn.Linear(2, 2).parameters(), **options)) == momentum
