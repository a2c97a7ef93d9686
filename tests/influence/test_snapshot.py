"""Restoring is exact.

- Parameters, buffers, moments and step counts are restored bit by bit, from device and from CPU memory, whatever they
  were changed to and however often.
- A parameter without optimizer state has none afterwards.
- Restoring writes into the same tensors and the same state, so that references stay valid.
- Without an optimizer its state is neither copied nor changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixfluence.influence.snapshot import Snapshot

everywhere = pytest.mark.parametrize("on_cpu", [False, True], ids=["device", "cpu"])


class Model(nn.Module):
    """Weights, buffers of two types, and a part that some batches do not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2).to(torch.float64)
        self.seldom = nn.Linear(2, 2).to(torch.float64)

    def forward(self, inputs: Tensor, through_all: bool) -> Tensor:
        hidden = self.last(self.norm(self.first(inputs)).double())
        outputs: Tensor = self.seldom(hidden) if through_all else hidden
        return outputs


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture(params=[{}, {"amsgrad": True}], ids=["adamw", "amsgrad"])
def optimizer(model: Model, request: pytest.FixtureRequest) -> torch.optim.Optimizer:
    """Two steps old, without state for the part that was not reached."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **request.param)
    train(model, optimizer, through_all=False)
    return optimizer


def train(model: Model, optimizer: torch.optim.Optimizer, *, through_all: bool = True, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.randn(8, 4), through_all).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def live(model: Model) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def bits(value: Any) -> Any:
    """Return a tensor's bytes, in which NaN equals NaN and 0 is not -0."""
    return value.detach().numpy().tobytes() if isinstance(value, Tensor) else value


def states(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any]]:
    for group in optimizer.param_groups:
        yield from (optimizer.state.get(parameter, {}) for parameter in group["params"])


def everything(model: Model, optimizer: torch.optim.Optimizer) -> list[Any]:
    kept = [{name: bits(value) for name, value in state.items()} for state in states(optimizer)]
    return [*map(bits, live(model)), *kept]


def identities(model: Model, optimizer: torch.optim.Optimizer) -> list[tuple[int, ...]]:
    """Return the objects that others may hold, and where their numbers are."""
    tensors = [(id(tensor), tensor.data_ptr()) for tensor in live(model)]
    kept = [
        (id(state), *map(id, state.values()), *(value.data_ptr() for value in state.values()))
        for state in optimizer.state.values()
    ]
    return [*tensors, *kept]


@everywhere
def test_everything_is_restored_to_the_last_bit_as_often_as_asked(
    model: Model, optimizer: torch.optim.Optimizer, on_cpu: bool
) -> None:
    before, held = everything(model, optimizer), identities(model, optimizer)
    snapshot = Snapshot(live(model), optimizer, on_cpu=on_cpu)
    for _ in range(3):
        train(model, optimizer)
        assert all(one != other for one, other in zip(before, everything(model, optimizer), strict=True))
        snapshot.restore()
        assert everything(model, optimizer) == before
        assert identities(model, optimizer) == held


@everywhere
def test_state_made_during_a_probe_is_gone_and_training_makes_it_anew(
    model: Model, optimizer: torch.optim.Optimizer, on_cpu: bool
) -> None:
    snapshot = Snapshot(live(model), optimizer, on_cpu=on_cpu)
    train(model, optimizer)
    assert all(optimizer.state.get(parameter) for parameter in model.seldom.parameters())
    snapshot.restore()
    assert not any(parameter in optimizer.state for parameter in model.seldom.parameters())
    train(model, optimizer, steps=1)
    assert [float(optimizer.state[parameter]["step"]) for parameter in model.seldom.parameters()] == [1, 1]
    assert float(optimizer.state[model.first.weight]["step"]) == 3


@everywhere
def test_an_optimizer_that_was_never_used_is_restored_to_that(model: Model, on_cpu: bool) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    snapshot = Snapshot(live(model), optimizer, on_cpu=on_cpu)
    train(model, optimizer)
    snapshot.restore()
    assert len(optimizer.state) == 0


@everywhere
def test_a_model_that_went_to_nan_comes_back_with_its_own_zeros_and_nans(model: Model, on_cpu: bool) -> None:
    with torch.no_grad():
        model.first.bias.copy_(torch.tensor([0.0, -0.0, torch.nan, torch.inf, 1e-45, 1.0]))
    before = [bits(tensor) for tensor in live(model)]
    snapshot = Snapshot(live(model), on_cpu=on_cpu)
    with torch.no_grad():
        for tensor in live(model):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 99)
    snapshot.restore()
    assert [bits(tensor) for tensor in live(model)] == before


@everywhere
def test_without_an_optimizer_its_state_is_left_alone(
    model: Model, optimizer: torch.optim.Optimizer, on_cpu: bool
) -> None:
    snapshot = Snapshot(live(model), on_cpu=on_cpu)
    train(model, optimizer)
    trained = [{name: bits(value) for name, value in state.items()} for state in states(optimizer)]
    snapshot.restore()
    assert [{name: bits(value) for name, value in state.items()} for state in states(optimizer)] == trained
    assert snapshot.bytes == sum(tensor.nbytes for tensor in live(model))


def test_copies_are_those_of_the_given_tensors_and_no_views_of_them(
    model: Model, optimizer: torch.optim.Optimizer
) -> None:
    snapshot = Snapshot(live(model), optimizer)
    copies = snapshot.copies[: len(live(model))]
    assert [bits(tensor) for tensor in copies] == [bits(tensor) for tensor in live(model)]
    assert not {tensor.data_ptr() for tensor in copies} & {tensor.data_ptr() for tensor in live(model)}
    assert not any(tensor.requires_grad for tensor in copies)
    kept = sum(value.nbytes for state in optimizer.state.values() for value in state.values())
    assert snapshot.bytes == sum(tensor.nbytes for tensor in live(model)) + kept


def test_an_optimizer_that_counts_in_plain_numbers_is_restored_too() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.state[parameter] = {"step": 5, "momentum_buffer": torch.ones(3)}
    snapshot = Snapshot([parameter], optimizer)
    optimizer.state[parameter]["step"] += 1
    optimizer.state[parameter]["momentum_buffer"] = torch.zeros(3)
    snapshot.restore()
    assert optimizer.state[parameter]["step"] == 5
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [1, 1, 1]
