"""Probing measures influences without side effects.

- Parameters, buffers, optimizer state, learning rates, schedule, random states and modes are restored bit by bit: for
  each probe state, snapshot location and learning rate, and also after an error.
- Without steps influence is exactly zero; equal batches give equal gains with equal dropout, whatever was probed
  before.
- A probe that goes to NaN is reported as failed, and the others are measured as if it were absent.
- Training on the dev rows helps, and training on mismatched rows harms.
- With Reptile the model moves by the weighted mean displacement of the probes, and nothing else changes.
- Memory is 1 parameter size, 2 more with inherited state, 1 more with Reptile.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from mixfluence.errors import RecipeError
from mixfluence.influence import (
    DevBatch,
    Influences,
    Piece,
    Probe,
    Prober,
    Reptile,
    info_nce_metric,
    relative_rate,
    resolve_metric,
)
from mixfluence.influence import soft_ndcg_metric as soft_ndcg

State = Literal["inherited", "momentum-free"]
Rate = Literal["current"] | float
Columns = list[dict[str, Any]]
GREATEST = 0.01

either_state = pytest.mark.parametrize("state", ["inherited", "momentum-free"])


class Normed(nn.Module):
    """Batch normalisation of embeddings: its buffers change with every forward pass in training mode."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {"sentence_embedding": self.norm(features["sentence_embedding"])}


class Contrast(nn.Module):
    """InfoNCE with a temperature of its own to learn, which also uses the random states that are not torch's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, columns: Columns) -> Tensor:
        queries, positives = (
            nn.functional.normalize(self.model(dict(column))["sentence_embedding"], dim=-1) for column in columns
        )
        random.random()
        np.random.random()  # noqa: NPY002
        scores = self.log_scale.exp() * queries @ positives.T
        return nn.functional.cross_entropy(scores, torch.arange(len(queries)))


class SmallLearner:
    """An encoder, its loss and optimizer a few steps into training."""

    rank = 0
    world = 1

    def __init__(self, model: nn.Module, seen: Sequence[Columns]) -> None:
        self.model: nn.Module = model
        self.loss = Contrast(model)
        self.modules: nn.Module = nn.ModuleList([model, self.loss])
        self.optimizer: Optimizer = torch.optim.AdamW(self.modules.parameters(), lr=GREATEST)
        self.schedule = LambdaLR(self.optimizer, lambda step: 1 / (1 + min(step, 3)))
        self.used: list[float] = []
        self.modules.train()
        for batch in seen:
            self.backward(batch)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()

    def backward(self, batch: Columns) -> None:
        self.used.append(float(self.optimizer.param_groups[0]["lr"]))
        self.loss(batch).backward()
        nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)

    def agree(self, values: Tensor) -> Tensor:
        return values

    def total(self, values: Tensor) -> Tensor:
        return values


class Broken(SmallLearner):
    """One whose gradient is not a number on batches that say so."""

    def backward(self, batch: Columns) -> None:
        super().backward(batch)
        if batch[0].get("broken"):
            for parameter in self.modules.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(torch.nan)


class BrokenScale(SmallLearner):
    """One of whose parameters only that of the loss breaks, on the batches of one dataset."""

    broken: Columns | None = None

    def backward(self, batch: Columns) -> None:
        super().backward(batch)
        if batch is self.broken:
            assert self.loss.log_scale.grad is not None
            self.loss.log_scale.grad.fill_(torch.nan)


class Failing(SmallLearner):
    """One that at some time fails when gradients are there already."""

    works = True
    left = False

    def backward(self, batch: Columns) -> None:
        super().backward(batch)
        if not self.works:
            self.left = all(parameter.grad is not None for parameter in self.modules.parameters())
            raise MemoryError("after the gradient was there")


def columns(model: SentenceTransformer, dataset: int, step: int = 0) -> Columns:
    """Six pairs of words that only this dataset has: a word and the one twenty further belong together."""
    first = [40 * dataset + 6 * step + row for row in range(6)]
    return [model.preprocess([f"w{n}" for n in first]), model.preprocess([f"w{n + 20}" for n in first])]


def batches(model: SentenceTransformer, steps: int = 2) -> Callable[[int], list[Columns]]:
    return lambda dataset: [columns(model, dataset, step) for step in range(steps)]


def dev_batches(model: SentenceTransformer) -> list[DevBatch]:
    return [DevBatch(f"target{n}", [Piece(columns(model, n, step)) for step in range(2)]) for n in (1, 3)]


def all_words(model: SentenceTransformer) -> list[Columns]:
    return [columns(model, dataset, step) for step in range(2) for dataset in range(5)]


@pytest.fixture
def learner(tiny_bert: SentenceTransformer) -> SmallLearner:
    """A transformer with dropout and changing buffers, of which one part is in eval mode and one is never reached."""
    torch.manual_seed(1)
    learner = SmallLearner(nn.Sequential(tiny_bert, Normed(16)), [columns(tiny_bert, 4, step) for step in range(3)])
    next(part for part in learner.modules.modules() if isinstance(part, nn.LayerNorm)).eval()
    assert any(parameter not in learner.optimizer.state for parameter in learner.modules.parameters())
    return learner


@pytest.fixture
def static(make_static: Callable[[], SentenceTransformer]) -> SmallLearner:
    """Word vectors that have all been trained: no dropout, no buffers, and every parameter has state."""
    model = make_static()
    return SmallLearner(model, all_words(model))


def bits(value: Any) -> Any:
    return value.detach().numpy().tobytes() if isinstance(value, Tensor) else value


def everything(learner: SmallLearner) -> dict[str, Any]:
    """Return all that a round must not change, so that equal means equal to the last bit."""
    optimizer = learner.optimizer
    state = optimizer.state_dict()
    numpy_state = np.random.get_state()  # noqa: NPY002
    return {
        "tensors": [bits(tensor) for tensor in (*learner.modules.parameters(), *learner.modules.buffers())],
        "tensor ids": [id(tensor) for tensor in (*learner.modules.parameters(), *learner.modules.buffers())],
        "state": {key: {k: bits(v) for k, v in kept.items()} for key, kept in state["state"].items()},
        "state ids": [id(value) for kept in optimizer.state.values() for value in (kept, *kept.values())],
        "groups": state["param_groups"],
        "schedule": [learner.schedule.last_epoch, *learner.schedule.get_last_lr()],
        "modes": [part.training for part in learner.modules.modules()],
        "gradients": [parameter.grad for parameter in learner.modules.parameters()],
        "random": [random.getstate(), bits(torch.get_rng_state()), str(numpy_state)],
        "grad mode": torch.is_grad_enabled(),
    }


def encoder(learner: SmallLearner) -> SentenceTransformer:
    return learner.model[0] if type(learner.model) is nn.Sequential else learner.model


def measure(
    learner: SmallLearner,
    datasets: Sequence[int] = (0, 1, 2),
    *,
    steps: int = 2,
    seed: int = 5,
    reptile: Reptile | None = None,
    **options: Any,
) -> Influences:
    probe = Probe(**options)
    prober = Prober(learner, probe, resolve_metric(probe.metric, nn.Identity()), reptile)
    model = encoder(learner)
    return prober.measure(datasets, batches(model, steps), dev_batches(model), seed=seed)


@either_state
@pytest.mark.parametrize("snapshot", ["device", "cpu"])
@pytest.mark.parametrize("learning_rate", ["current", 0.05])
def test_a_round_leaves_everything_as_it_was(
    learner: SmallLearner, state: State, snapshot: Literal["device", "cpu"], learning_rate: Rate
) -> None:
    before = everything(learner)
    assert len(set(before["modes"])) == 2
    influences = measure(learner, state=state, snapshot=snapshot, learning_rate=learning_rate)
    assert everything(learner) == before
    assert influences.probed.tolist() == [0, 1, 2]
    assert influences.targets == ["target1", "target3"]
    assert [gain.shape for gain in influences.gains] == [(3, 12), (3, 12)]
    assert all(np.abs(gain).max() > 1e-6 for gain in influences.gains)


@either_state
@pytest.mark.parametrize("snapshot", ["device", "cpu"])
@pytest.mark.parametrize("reptile", [None, Reptile()], ids=["plain", "reptile"])
def test_a_probe_that_fails_midway_leaves_everything_as_it_was(
    learner: SmallLearner, state: State, snapshot: Literal["device", "cpu"], reptile: Reptile | None
) -> None:
    model = encoder(learner)

    def failing(dataset: int) -> Iterator[Columns]:
        yield columns(model, dataset)
        if dataset == 1:
            raise OSError("the disk is gone")

    before = everything(learner)
    probe = Probe(state=state, snapshot=snapshot, learning_rate=0.05)
    prober = Prober(learner, probe, info_nce_metric(), reptile)
    with pytest.raises(OSError, match="the disk is gone"):
        prober.measure([0, 1, 2], failing, dev_batches(model), seed=0)
    assert everything(learner) == before


@either_state
def test_a_backward_pass_that_fails_leaves_no_gradient(
    make_static: Callable[[], SentenceTransformer], state: State
) -> None:
    model = make_static()
    learner = Failing(model, all_words(model))
    before = everything(learner)
    learner.works = False
    with pytest.raises(MemoryError, match="after the gradient was there"):
        measure(learner, state=state)
    assert learner.left
    assert everything(learner) == before


@either_state
@pytest.mark.parametrize("reptile", [None, Reptile(rate=1.0)], ids=["plain", "reptile"])
def test_without_steps_influence_is_exactly_zero(learner: SmallLearner, state: State, reptile: Reptile | None) -> None:
    before = everything(learner)
    influences = measure(learner, steps=0, state=state, reptile=reptile)
    assert all((gain == 0).all() for gain in influences.gains)
    assert influences.spread() == 0
    assert everything(learner) == before


@either_state
def test_equal_batches_give_equal_gains_whatever_was_probed_before(learner: SmallLearner, state: State) -> None:
    influences = measure(learner, [2, 0, 2, 2], state=state)
    again = measure(learner, [2], state=state)
    for gain, alone in zip(influences.gains, again.gains, strict=True):
        assert gain[0].tolist() == gain[2].tolist() == gain[3].tolist() == alone[0].tolist()
        assert gain[0].tolist() != gain[1].tolist()


def test_the_seed_decides_dropout(learner: SmallLearner) -> None:
    one, other = measure(learner, [2], seed=5), measure(learner, [2], seed=6)
    assert one.gains[0].tolist() != other.gains[0].tolist()
    assert one.base.tolist() == other.base.tolist()


def test_gains_are_the_metrics_change_and_positive_where_it_became_better(static: SmallLearner) -> None:
    model = encoder(static)
    loss = measure(static, [0], metric=info_nce_metric(0.1), state="inherited")
    ndcg = measure(static, [0], metric=soft_ndcg(0.1), state="inherited")
    dev = dev_batches(model)

    def look(learner: SmallLearner) -> list[Tensor]:
        with torch.no_grad():
            return [
                metric.values(learner.model, batch)
                for batch in dev
                for metric in (info_nce_metric(0.1), soft_ndcg(0.1))
            ]

    before = look(static)
    for batch in batches(model)(0):
        static.backward(batch)
        static.optimizer.step()
        static.optimizer.zero_grad()
    after = look(static)
    for number in (0, 1):
        expected = [before[2 * number] - after[2 * number], after[2 * number + 1] - before[2 * number + 1]]
        assert loss.gains[number][0] == pytest.approx(expected[0].numpy(), abs=1e-6)
        assert ndcg.gains[number][0] == pytest.approx(expected[1].numpy(), abs=1e-6)


@either_state
def test_training_on_the_dev_rows_helps_and_on_mismatched_ones_harms(static: SmallLearner, state: State) -> None:
    model = encoder(static)
    dev = [DevBatch("dev", [Piece(columns(model, 1))])]
    right = columns(model, 1)
    wrong = [right[0], model.preprocess([f"w{60 + (row + 3) % 6}" for row in range(6)])]
    far = columns(model, 3)
    prober = Prober(static, Probe(state=state, learning_rate=0.02), info_nce_metric(0.1))
    influences = prober.measure([0, 1, 2], lambda dataset: [[right, wrong, far][dataset]] * 3, dev, seed=0)
    found = influences.combine()[0]
    assert found[0] > found[2] > found[1]
    # Momentum carries all probes the same way, here a good one.
    assert found[0] > 0 > found[1] - (found[2] if state == "inherited" else 0)


@either_state
@pytest.mark.parametrize("reptile", [None, Reptile(rate=1.0)], ids=["plain", "reptile"])
def test_a_probe_that_goes_to_nan_is_contained(
    make_static: Callable[[], SentenceTransformer], state: State, reptile: Reptile | None
) -> None:
    model = make_static()
    dev = dev_batches(model)

    def measured(datasets: list[int]) -> tuple[Influences, SmallLearner]:
        learner = Broken(make_static(), all_words(model))
        prober = Prober(learner, Probe(state=state), info_nce_metric(), reptile)

        def drawn(dataset: int) -> list[Columns]:
            batch = columns(model, dataset)
            return [[{**batch[0], "broken": dataset == 1}, batch[1]]]

        return prober.measure(datasets, drawn, dev, seed=0), learner

    (with_nan, after), (without, expected) = measured([0, 1, 2]), measured([0, 2])
    assert with_nan.failed.tolist() == [1]
    assert with_nan.probed.tolist() == [0, 2]
    for one, other in zip(with_nan.gains, without.gains, strict=True):
        assert one.tolist() == other.tolist()
    for one_, other_ in zip(after.modules.parameters(), expected.modules.parameters(), strict=True):
        assert torch.equal(one_, other_)
        assert one_.isfinite().all()


@either_state
def test_a_probe_that_breaks_what_no_metric_reads_has_failed_too(
    make_static: Callable[[], SentenceTransformer], state: State
) -> None:
    model = make_static()
    learner = BrokenScale(model, all_words(model))
    drawn = [columns(model, dataset) for dataset in range(3)]
    learner.broken = drawn[1]
    prober = Prober(learner, Probe(state=state), info_nce_metric())
    influences = prober.measure([0, 1, 2], lambda dataset: [drawn[dataset]], dev_batches(model), seed=0)
    assert influences.failed.tolist() == [1]
    assert influences.probed.tolist() == [0, 2]
    assert learner.loss.log_scale.isfinite()


def test_a_model_that_is_nan_already_gives_no_influence(static: SmallLearner) -> None:
    with torch.no_grad():
        next(static.model.parameters()).fill_(torch.nan)
    influences = measure(static, reptile=Reptile(rate=1.0))
    assert influences.probed.tolist() == []
    assert influences.failed.tolist() == [0, 1, 2]


@either_state
@pytest.mark.parametrize(("learning_rate", "expected"), [("current", GREATEST / 4), (0.05, 0.05)])
def test_probes_step_at_the_learning_rate_that_was_asked_for(
    static: SmallLearner, state: State, learning_rate: Rate, expected: float
) -> None:
    static.used.clear()
    measure(static, state=state, learning_rate=learning_rate)
    assert static.used == pytest.approx([expected] * 6)
    assert relative_rate(static.optimizer) == 0.25


def test_a_schedule_that_never_rises_is_at_no_part_of_its_greatest_rate(static: SmallLearner) -> None:
    for rate, greatest, expected in ((0.0, 0.0, 0.0), (0.0, 0.1, 0.0), (0.05, 0.1, 0.5)):
        static.optimizer.param_groups[0].update(lr=rate, initial_lr=greatest)
        assert relative_rate(static.optimizer) == expected
    del static.optimizer.param_groups[0]["initial_lr"]
    assert relative_rate(static.optimizer) == 1


def moved_by(learner: SmallLearner, dataset: int, seed: int = 5) -> list[Tensor]:
    """Return what two steps of the run's own optimizer on a dataset do to each parameter, on a copy."""
    twin = copy.deepcopy(learner)
    twin.modules.train()
    with torch.random.fork_rng([]):
        for number, batch in enumerate(batches(encoder(twin))(dataset)):
            torch.manual_seed(seed + number)
            twin.backward(batch)
            twin.optimizer.step()
            twin.optimizer.zero_grad()
    pairs = zip(twin.modules.parameters(), learner.modules.parameters(), strict=True)
    return [(new - old).detach() for new, old in pairs]


@pytest.mark.parametrize("snapshot", ["device", "cpu"])
def test_with_reptile_the_model_moves_by_the_mean_of_its_probes_and_nothing_else_changes(
    learner: SmallLearner, snapshot: Literal["device", "cpu"]
) -> None:
    moves = [moved_by(learner, dataset) for dataset in range(3)]
    start = [parameter.detach().clone() for parameter in learner.modules.parameters()]
    before = everything(learner)
    measure(learner, reptile=Reptile(), snapshot=snapshot, state="inherited")
    for number, parameter in enumerate(learner.modules.parameters()):
        # A quarter of the greatest learning rate is a quarter of the way.
        expected = start[number] + 0.25 * sum((move[number] for move in moves), torch.zeros(1)) / 3
        torch.testing.assert_close(parameter.detach(), expected.reshape(parameter.shape), rtol=1e-5, atol=1e-6)
    changed = [name for name, kept in everything(learner).items() if kept != before[name]]
    assert changed == ["tensors"]
    buffers = [bits(buffer) for buffer in learner.modules.buffers()]
    assert before["tensors"][len(start) :] == buffers


@pytest.mark.parametrize("tau", ["spread", 0.001])
def test_reptile_favours_the_better_probes_by_its_temperature(static: SmallLearner, tau: str | float) -> None:
    model = encoder(static)
    moves = [moved_by(static, dataset)[0] for dataset in range(3)]
    start = next(static.model.parameters()).detach().clone()
    gains = measure(static, state="inherited").combine()[0]
    prober = Prober(static, Probe(state="inherited"), info_nce_metric(), Reptile(rate=1.0, tau=tau))
    # Without a number it is the spread of the round before.
    temperature = gains.std() if isinstance(tau, str) else tau
    prober.measure([0, 1, 2], batches(model), dev_batches(model), seed=5, spread=gains.std())
    shares = torch.tensor(gains / temperature).softmax(0).float()
    assert shares.max() > 0.4
    expected = start + torch.einsum("p,p...->...", shares, torch.stack(moves))
    torch.testing.assert_close(next(static.model.parameters()).detach(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("state", "reptile", "expected"),
    [
        ("momentum-free", None, 1),
        ("inherited", None, 3),
        ("momentum-free", Reptile(), 2),
        ("inherited", Reptile(), 4),
    ],
)
def test_memory_is_counted_in_parameter_sizes(
    static: SmallLearner, state: State, reptile: Reptile | None, expected: int
) -> None:
    model = encoder(static)
    prober = Prober(static, Probe(state=state), info_nce_metric(), reptile)
    prober.measure([0, 1], batches(model, 1), dev_batches(model), seed=0)
    parameters = list(static.modules.parameters())
    beside = sum(buffer.nbytes for buffer in static.modules.buffers()) + 4 * len(parameters)
    slack = beside / sum(parameter.nbytes for parameter in parameters)
    assert expected <= prober.memory <= expected + slack
    assert slack < 0.01


@pytest.mark.parametrize(
    ("option", "value"), [("batch_size", 1), ("dev_batch_size", 0), ("learning_rate", 0), ("learning_rate", math.nan)]
)
def test_impossible_probes_are_refused(option: str, value: Any) -> None:
    with pytest.raises(RecipeError, match=rf"{option}\b.*{value}"):
        Probe(**{option: value})
