"""Alignment of gradients, without side effects.

- On a model whose gradients are the batches, cosines and projections equal those computed by hand: with several
  targets, several batches, a metric to maximise, and Adam's second moments.
- On a transformer they equal those of separately computed gradients, with dropout and parameters that no target uses.
  Preconditioning gives the direction of Adam without momentum.
- Parameters, buffers, optimizer, gradients, random states and modes are restored bit by bit in every mode, also after
  an error.
- A dataset equal to the target is aligned best, mismatched rows least. Without a gradient the alignment is zero.
- A dataset with NaN fails alone; the others are measured as if it were absent.
- 16-bit gradients are summed in fp32. All processes use the result of the first. Memory is 1 parameter size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from mixfluence.errors import RecipeError
from mixfluence.influence import (
    Alignment,
    DevBatch,
    Influences,
    Learner,
    Metric,
    Piece,
    Projection,
    Reptile,
    info_nce_metric,
    resolve_metric,
)
from mixfluence.influence.alignment import Aligner
from tests.influence.test_probe import (
    Broken,
    BrokenScale,
    Columns,
    Failing,
    Normed,
    SmallLearner,
    all_words,
    batches,
    columns,
    dev_batches,
    encoder,
    everything,
)

Score = Literal["cosine", "projection"]
MODES = [
    {"score": score, "preconditioned": preconditioned}
    for score in ("cosine", "projection")
    for preconditioned in (False, True)
]
every_mode = pytest.mark.parametrize(
    "mode", MODES, ids=lambda mode: " ".join(str(value) for value in mode.values()).lower()
)


# A model whose gradients are what one gives it.


class Line(nn.Module):
    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights))


class LineLearner:
    """The gradient of a batch is the batch."""

    rank = 0
    world = 1

    def __init__(self, *weights: float, optimizer: Callable[..., Optimizer] = AdamW, **options: Any) -> None:
        self.model: nn.Module = Line(*weights)
        self.modules: nn.Module = self.model
        self.optimizer: Optimizer = optimizer(self.model.parameters(), **options)

    @property
    def weight(self) -> Tensor:
        return next(self.model.parameters())

    def backward(self, batch: Tensor) -> None:
        (self.weight * batch).sum().backward()  # type: ignore[no-untyped-call]

    def agree(self, values: Tensor) -> Tensor:
        return values

    def total(self, values: Tensor) -> Tensor:
        return values


def linear(model: nn.Module, batch: DevBatch) -> Tensor:
    """A metric whose gradient is the mean of the rows."""
    return torch.stack([(next(model.parameters()) * piece.columns[0]["x"]).sum() for piece in batch.pieces])


def target(name: str, *rows: Sequence[float]) -> DevBatch:
    return DevBatch(name, [Piece([{"x": torch.tensor(row)}]) for row in rows])


TARGETS = [target("east", (3.0, 0.0), (-1.0, 0.0)), target("north", (0.0, 2.0))]


def settings(score: Score = "cosine", **options: Any) -> Alignment:
    return Projection(**options) if score == "projection" else Alignment(**options)


def align(
    learner: Learner,
    batches: Sequence[Sequence[Sequence[float]]],
    dev: Sequence[DevBatch] = TARGETS,
    values: Callable[[nn.Module, DevBatch], Tensor] = linear,
    *,
    higher_is_better: bool = False,
    **options: Any,
) -> Influences:
    metric = Metric(values, higher_is_better)
    meter = settings(metric=metric, **options).meter(learner, metric, None)
    rows = [[torch.tensor(batch) for batch in dataset] for dataset in batches]
    return meter.measure(range(len(batches)), lambda dataset: rows[dataset], dev, seed=0, spread=math.inf)


def values(influences: Influences) -> list[float]:
    found: list[float] = influences.combine()[0].tolist()
    return found


def test_the_cosines_of_a_linear_model_are_those_worked_out_by_hand() -> None:
    # Targets point to (1, 0) and (0, 2). (3, 4) has the cosines 0.6 and 0.8, (-1, 0) has -1 and 0.
    influences = align(LineLearner(1.0, 10.0), [[(3.0, 4.0)], [(-1.0, 0.0)], [(0.0, 0.0)], []])
    assert values(influences) == pytest.approx([0.7, -0.5, 0.0, 0.0], abs=1e-6)
    assert influences.targets == ["east+north"]
    # The metric is 3 and -1 on one target, 20 on the other.
    assert influences.base.tolist() == pytest.approx([(1 + 20) / 2])
    assert influences.probed.tolist() == [0, 1, 2, 3]


def test_the_projections_of_a_linear_model_are_those_worked_out_by_hand() -> None:
    # The targets, cut to length 1, are (1, 0) and (0, 1); the norms of the datasets are 5 and 1, their mean 3.
    found = values(align(LineLearner(0.0, 0.0), [[(3.0, 4.0)], [(-1.0, 0.0)]], score="projection"))
    assert found == pytest.approx([7 / 3, -1 / 3], abs=1e-5)
    assert values(align(LineLearner(0.0, 0.0), [[(0.0, 0.0)], []], score="projection")) == [0, 0]


def test_the_gradients_of_several_batches_are_summed() -> None:
    learner = LineLearner(0.0, 0.0)
    together = align(learner, [[(3.0, 4.0)], [(1.0, 5.0), (2.0, -1.0)], [(-3.0, 4.0), (0.0, 0.0)]])
    assert values(together) == pytest.approx([0.7, 0.7, 0.1], abs=1e-6)


def test_batches_of_one_target_are_one_target() -> None:
    rows = [[(3.0, 4.0)], [(-1.0, 0.0)]]
    apart = [target("east", (3.0, 0.0)), target("east", (-1.0, 0.0)), TARGETS[1]]
    whole, parts = (align(LineLearner(1.0, 10.0), rows, dev) for dev in (TARGETS, apart))
    assert values(parts) == pytest.approx(values(whole))
    assert (parts.targets, parts.base.tolist()) == (whole.targets, whole.base.tolist())


@pytest.mark.parametrize("score", ["cosine", "projection"])
def test_a_metric_that_is_to_rise_turns_every_sign(score: Score) -> None:
    rows = [[(3.0, 4.0)], [(-1.0, 0.0)]]
    fall, rise = (align(LineLearner(1.0, 2.0), rows, score=score, higher_is_better=higher) for higher in (False, True))
    assert values(rise) == pytest.approx([-value for value in values(fall)])
    assert rise.base.tolist() == fall.base.tolist() == [2.5]


def test_a_target_without_a_gradient_counts_as_no_alignment() -> None:
    dev = [target("flat", (0.0, 0.0)), target("north", (0.0, 2.0))]
    assert values(align(LineLearner(0.0, 0.0), [[(3.0, 4.0)]], dev)) == pytest.approx([0.4])


def test_the_gradient_is_divided_by_the_root_of_second_moments_that_stay_as_they_are() -> None:
    learner = LineLearner(0.0, 0.0, lr=0.1, betas=(0.9, 0.5), weight_decay=0.0)
    learner.weight.grad = torch.tensor([8.0, 2.0])
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    # After one step the moments are half the squares: 32 and 2.
    kept = 0.5 * np.array([32.0, 2.0]) + 0.5 * np.array([2.0, 4.0]) ** 2
    scaled = np.array([2.0, 4.0]) / np.sqrt(kept / (1 - 0.5**2))
    dev = [target("north", (0.0, 2.0))]
    found = values(align(learner, [[(2.0, 4.0)]], dev, preconditioned=True))
    assert found == pytest.approx([scaled[1] / np.linalg.norm(scaled)], abs=1e-6)
    assert found[0] > 4 / math.sqrt(20) + 0.04
    projected = values(align(learner, [[(2.0, 4.0)]], dev, preconditioned=True, score="projection"))
    assert projected == pytest.approx([scaled[1] / np.linalg.norm(scaled)], abs=1e-5)


def test_a_parameter_without_second_moments_counts_as_in_the_first_step_of_adam() -> None:
    # Adam's first step is the sign of the gradient, however unequal its parts are.
    found = values(align(LineLearner(0.0, 0.0), [[(1e-3, 5.0)]], preconditioned=True))
    assert found == pytest.approx([1 / math.sqrt(2)], abs=1e-4)


def test_second_moments_are_counted_for_every_parameter_apart() -> None:
    class Halves(LineLearner):
        """Its two weights are parameters of their own."""

        def __init__(self) -> None:
            super().__init__()
            self.model = self.modules = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(2)])
            self.optimizer = AdamW(self.model.parameters(), betas=(0.9, 0.5), weight_decay=0.0)

        def backward(self, batch: Tensor) -> None:
            (torch.cat(list(self.model.parameters())) * batch).sum().backward()  # type: ignore[no-untyped-call]

    learner = Halves()
    learner.weight.grad = torch.tensor([8.0])
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    # The first has moved once: its moment is 32, then (32 + 2^2) / 2 = 18. For the second it is Adam's first step.
    scaled = np.array([2.0 / math.sqrt(18 / (1 - 0.5**2)), 1.0])
    dev = [target("east", (1.0, 0.0))]
    found = values(align(learner, [[(2.0, 4.0)]], dev, preconditioned=True))
    assert found == pytest.approx([scaled[0] / np.linalg.norm(scaled)], abs=1e-6)


def test_sums_over_16_bit_gradients_are_taken_in_fp32() -> None:
    torch.manual_seed(0)
    learner = LineLearner(*[0.0] * 20_000)
    learner.model.to(torch.bfloat16)
    rows = torch.randn(3, 20_000) + 0.02
    dev = [DevBatch(str(row), [Piece([{"x": rows[row].bfloat16()}])]) for row in (0, 1)]
    metric = Metric(linear, higher_is_better=False)
    meter = Aligner(learner, Alignment(), metric)
    found = values(meter.measure([0], lambda dataset: [rows[2].bfloat16()], dev, seed=0))
    exact = rows.bfloat16().double()
    expected = float(torch.cosine_similarity(exact[:2], exact[2:], dim=1).mean())
    assert found == pytest.approx([expected], abs=1e-6)
    # Two bytes a parameter, four for what is kept.
    assert meter.memory == 2


def test_every_process_takes_what_the_first_one_found() -> None:
    told: list[Tensor] = []

    class First(LineLearner):
        def agree(self, values: Tensor) -> Tensor:
            told.append(values)
            return values

    class Second(LineLearner):
        def agree(self, values: Tensor) -> Tensor:
            assert values.shape == told[0].shape
            return told[0]

    rows = [[(3.0, 4.0)], [(-1.0, 0.0)]]
    first = align(First(1.0, 10.0), rows)
    second = align(Second(2.0, 3.0), [[(1.0, 1.0)], [(math.nan, 1.0)]])
    assert len(told) == 1
    assert values(second) == values(first)
    assert second.base.tolist() == first.base.tolist()
    assert second.failed.tolist() == []


# A transformer with dropout, changing buffers, and parameters that nothing reaches.


@pytest.fixture
def learner(tiny_bert: SentenceTransformer) -> SmallLearner:
    torch.manual_seed(1)
    learner = SmallLearner(nn.Sequential(tiny_bert, Normed(16)), [columns(tiny_bert, 4, step) for step in range(3)])
    next(part for part in learner.modules.modules() if isinstance(part, nn.LayerNorm)).eval()
    assert any(parameter not in learner.optimizer.state for parameter in learner.modules.parameters())
    return learner


@pytest.fixture
def static(make_static: Callable[[], SentenceTransformer]) -> SmallLearner:
    model = make_static()
    return SmallLearner(model, all_words(model))


def measure(
    learner: SmallLearner, datasets: Sequence[int] = (0, 1, 2), *, steps: int = 1, seed: int = 5, **options: Any
) -> Influences:
    model, alignment = encoder(learner), settings(**options)
    meter = alignment.meter(learner, resolve_metric(alignment.metric, nn.Identity()), None)
    return meter.measure(datasets, batches(model, steps), dev_batches(model), seed=seed, spread=math.inf)


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    pairs = zip(tensors, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t.detach()).flatten().double() for t, p in pairs])


def train_gradient(learner: SmallLearner, dataset: int, *, adam: bool) -> Tensor:
    """Return a dataset's gradient, or the step of an Adam without momentum, from a copy of the learner."""
    twin = copy.deepcopy(learner)
    parameters = list(twin.modules.parameters())
    twin.modules.train()
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        twin.backward(columns(encoder(twin), dataset))
    if not adam:
        return flat([p.grad for p in parameters], parameters)
    before = flat(parameters, parameters)
    # A large step, so that the difference of parameters keeps its digits.
    twin.optimizer.param_groups[0].update(lr=1e3, betas=(0.0, 0.999), weight_decay=0.0)
    twin.optimizer.step()
    return (before - flat(parameters, parameters)) / 1e3


def dev_gradients(learner: SmallLearner) -> Tensor:
    learner.modules.eval()
    parameters = list(learner.modules.parameters())
    means = [info_nce_metric().values(learner.model, batch).mean() for batch in dev_batches(encoder(learner))]
    found = [flat(torch.autograd.grad(mean, parameters, allow_unused=True), parameters) for mean in means]
    return torch.stack(found)


@pytest.mark.parametrize("preconditioned", [False, True], ids=["raw", "preconditioned"])
def test_alignments_equal_those_of_all_gradients_taken_apart(learner: SmallLearner, preconditioned: bool) -> None:
    train = torch.stack([train_gradient(learner, dataset, adam=preconditioned) for dataset in range(3)])
    dev = dev_gradients(copy.deepcopy(learner))
    cosines = torch.cosine_similarity(train[:, None], dev[None], dim=2)
    assert cosines.std(dim=0).max() > 0.05
    found = values(measure(learner, preconditioned=preconditioned))
    assert found == pytest.approx(cosines.mean(dim=1).tolist(), abs=1e-4)
    cut = dev / dev.norm(dim=1, keepdim=True).clamp(min=1)
    projected = (train @ cut.T).sum(dim=1) / (train.norm(dim=1).mean() + 1e-6)
    found = values(measure(learner, preconditioned=preconditioned, score="projection"))
    assert found == pytest.approx(projected.tolist(), rel=1e-3, abs=1e-3 * float(projected.abs().max()))


@every_mode
def test_a_round_leaves_everything_as_it_was(learner: SmallLearner, mode: dict[str, Any]) -> None:
    before = everything(learner)
    assert len(set(before["modes"])) == 2
    assert set(before["gradients"]) == {None}
    influences = measure(learner, steps=2, **mode)
    assert everything(learner) == before
    assert influences.targets == ["target1+target3"]
    assert [gain.shape for gain in influences.gains] == [(3, 1)]
    assert min(map(abs, values(influences))) > 1e-6


def test_gradients_that_were_there_are_there_again_and_do_not_count(static: SmallLearner) -> None:
    expected = values(measure(static))
    kept = [torch.full_like(parameter, 7.0) for parameter in static.modules.parameters()]
    for parameter, gradient in zip(static.modules.parameters(), kept, strict=True):
        parameter.grad = gradient
    assert values(measure(static)) == expected
    for parameter, gradient in zip(static.modules.parameters(), kept, strict=True):
        assert parameter.grad is gradient
        assert (gradient == 7).all()


def test_a_round_that_fails_midway_leaves_everything_as_it_was(
    learner: SmallLearner, make_static: Callable[[], SentenceTransformer]
) -> None:
    model = encoder(learner)

    def failing(dataset: int) -> Iterator[Columns]:
        yield columns(model, dataset)
        if dataset == 1:
            raise OSError("the disk is gone")

    before = everything(learner)
    meter = Aligner(learner, Alignment(), info_nce_metric())
    with pytest.raises(OSError, match="the disk is gone"):
        meter.measure([0, 1, 2], failing, dev_batches(model), seed=0)
    assert everything(learner) == before

    static = make_static()
    broken = Failing(static, all_words(static))
    before = everything(broken)
    broken.works = False
    with pytest.raises(MemoryError, match="after the gradient was there"):
        measure(broken)
    assert broken.left
    assert everything(broken) == before


@every_mode
def test_equal_batches_are_aligned_alike_whatever_came_before(learner: SmallLearner, mode: dict[str, Any]) -> None:
    found = values(measure(learner, [2, 0, 2], **mode))
    assert found[0] == found[2] != found[1]
    if mode["score"] == "cosine":
        assert [found[0]] == values(measure(learner, [2], **mode))


def test_the_seed_decides_dropout(learner: SmallLearner) -> None:
    one, other = measure(learner, [2], seed=5), measure(learner, [2], seed=6)
    assert values(one) != values(other)
    assert one.base.tolist() == other.base.tolist()


def test_without_datasets_the_targets_are_only_looked_at(learner: SmallLearner) -> None:
    before = everything(learner)
    influences = measure(learner, [])
    assert everything(learner) == before
    assert influences.base.tolist() == pytest.approx(measure(learner, [0]).base.tolist())
    assert influences.on_targets().shape == (0, 1)
    assert influences.failed.tolist() == []


@every_mode
def test_the_targets_own_rows_are_best_aligned_and_mismatched_ones_least(
    static: SmallLearner, mode: dict[str, Any]
) -> None:
    model = encoder(static)
    right = columns(model, 1)
    wrong = [right[0], model.preprocess([f"w{60 + (row + 3) % 6}" for row in range(6)])]
    drawn = [right, wrong, columns(model, 3)]
    meter = Aligner(static, settings(**mode), info_nce_metric(0.1))
    dev = [DevBatch("dev", [Piece(right)])]
    found = values(meter.measure([0, 1, 2], lambda dataset: [drawn[dataset]], dev, seed=0))
    # Not below zero: even mismatched rows push apart passages that the target wants apart.
    assert found[0] > 2 * found[1]
    # Words that the target does not have share no parameter with it.
    assert found[2] == pytest.approx(0, abs=1e-6)


# What is not a number.


@every_mode
def test_a_dataset_that_goes_to_nan_is_contained(
    make_static: Callable[[], SentenceTransformer], mode: dict[str, Any]
) -> None:
    model = make_static()

    def drawn(dataset: int) -> list[Columns]:
        batch = columns(model, dataset)
        return [[{**batch[0], "broken": dataset == 1}, batch[1]]]

    def measured(datasets: list[int]) -> Influences:
        learner = Broken(make_static(), all_words(model))
        meter = Aligner(learner, settings(**mode), info_nce_metric())
        before = everything(learner)
        found = meter.measure(datasets, drawn, dev_batches(model), seed=0)
        assert everything(learner) == before
        return found

    with_nan = measured([0, 1, 2])
    assert with_nan.failed.tolist() == [1]
    assert with_nan.probed.tolist() == [0, 2]
    assert values(with_nan) == values(measured([0, 2]))


def test_a_gradient_that_breaks_where_no_target_has_one_has_failed_too(
    make_static: Callable[[], SentenceTransformer],
) -> None:
    model = make_static()
    learner = BrokenScale(model, all_words(model))
    drawn = [columns(model, dataset) for dataset in range(3)]
    learner.broken = drawn[1]
    meter = Aligner(learner, Alignment(), info_nce_metric())
    influences = meter.measure([0, 1, 2], lambda dataset: [drawn[dataset]], dev_batches(model), seed=0)
    assert influences.failed.tolist() == [1]
    assert influences.probed.tolist() == [0, 2]


@pytest.mark.parametrize("score", ["cosine", "projection"])
def test_without_a_target_that_is_a_number_every_dataset_has_failed(score: Score) -> None:
    dev = [target("east", (1.0, 0.0)), target("broken", (math.nan, 1.0))]
    influences = align(LineLearner(1.0, 1.0), [[(3.0, 4.0)], [(1.0, 1.0)]], dev, score=score)
    assert influences.probed.tolist() == []
    assert influences.failed.tolist() == [0, 1]
    assert influences.on_targets().shape == (0, 1)


def test_a_gradient_too_long_to_be_measured_has_failed() -> None:
    dev = [target("north", (0.0, 2.0))]
    influences = align(LineLearner(1.0, 1.0), [[(3.0, 4.0)], [(1e30, 0.0)], [(0.0, 1e-6)]], dev)
    assert influences.failed.tolist() == [1]
    assert values(influences) == pytest.approx([0.8, 1.0])


# What it costs, and what cannot work.


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_one_parameter_size(static: SmallLearner, mode: dict[str, Any]) -> None:
    model = encoder(static)
    meter = Aligner(static, settings(**mode), info_nce_metric())
    meter.measure([0, 1, 2], batches(model, 1), dev_batches(model), seed=0)
    assert meter.memory == pytest.approx(1, abs=0.01)


def test_a_round_takes_one_gradient_of_each_dataset_and_target_and_no_step(static: SmallLearner) -> None:
    counts = {"dev": 0, "steps": 0}

    def counted(model: nn.Module, batch: DevBatch) -> Tensor:
        counts["dev"] += torch.is_grad_enabled()
        return info_nce_metric().values(model, batch)

    def count_step(*_: Any) -> None:
        counts["steps"] += 1

    static.used.clear()
    static.optimizer.register_step_pre_hook(count_step)
    measure(static, metric=Metric(counted, higher_is_better=False))
    assert (len(static.used), counts["dev"], counts["steps"]) == (3, 2, 0)


def test_dividing_by_second_moments_needs_an_optimizer_that_has_them() -> None:
    with pytest.raises(RecipeError, match="SGD"):
        align(LineLearner(0.0, 0.0, optimizer=SGD, lr=0.1), [[(1.0, 1.0)]], preconditioned=True)


def test_a_metric_without_a_gradient_is_refused() -> None:
    with pytest.raises(RecipeError, match="differentiable metric"):
        align(LineLearner(0.0, 0.0), [[(1.0, 1.0)]], values=lambda model, batch: linear(model, batch).detach())


def test_reptile_has_nothing_to_follow() -> None:
    with pytest.raises(RecipeError, match="reptile"):
        Alignment().meter(LineLearner(0.0, 0.0), info_nce_metric(), Reptile())


@pytest.mark.parametrize(("option", "value"), [("batch_size", 1), ("dev_batch_size", 0)])
def test_impossible_alignments_are_refused(option: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=rf"{option}\b.*{value}"):
        Alignment(**{option: value})
