"""Momentum-free steps.

- A step equals the next step of Adam without momentum and weight decay, computed by hand and by torch's AdamW. A
  second step uses the same second moments.
- The optimizer's state is not changed; learning rates and betas are those of each group at the time of the step.
- A parameter without state or gradient is not moved, and no weight is moved further than by Adam without momentum, not
  even one whose gradient was zero so far.
- An optimizer without Adam's second moments is refused, also before its first step.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor

from mixfluence.errors import RecipeError
from mixfluence.influence import probe, refuse_without_moments
from mixfluence.influence.probe import FrozenAdam


def parameters(*sizes: int) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in sizes]


def set_gradients(live: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in live:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


def trained(live: list[nn.Parameter], steps: int = 3) -> torch.optim.AdamW:
    """An AdamW with two groups, a few steps old."""
    groups = [{"params": live[:1], "lr": 0.1}, {"params": live[1:], "lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.5)
    for number in range(steps):
        set_gradients(live, number)
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


def by_hand(parameter: Tensor, square: Tensor, count: int, rate: float, decay: float, epsilon: float) -> Tensor:
    assert parameter.grad is not None
    with_own = decay * square + (1 - decay) * parameter.grad**2
    return parameter.detach() - rate * parameter.grad / ((with_own / (1 - decay ** (count + 1))).sqrt() + epsilon)


@pytest.mark.parametrize("most", [1, 2**26], ids=["one by one", "together"])
def test_every_step_is_adams_next_from_second_moments_as_they_are(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SLICE", most)
    live = parameters(4, 3, 2)
    optimizer = trained(live)
    stepper = FrozenAdam(optimizer)
    for seed in (7, 8):
        set_gradients(live, seed)
        squares = [optimizer.state[parameter]["exp_avg_sq"] for parameter in live]
        expected = [
            by_hand(live[0], squares[0], 3, 0.1, 0.999, 1e-8),
            *(by_hand(live[i], squares[i], 3, 0.01, 0.99, 1e-3) for i in (1, 2)),
        ]
        stepper.step()
        for parameter, wanted in zip(live, expected, strict=True):
            torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_a_first_step_is_that_of_torchs_adamw_without_momentum(steps: int) -> None:
    live = parameters(5, 4)
    optimizer = trained(live, steps)
    set_gradients(live, 99)
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in live]
    groups = [
        {"params": [twin], "lr": group["lr"], "betas": (0.0, group["betas"][1]), "eps": group["eps"]}
        for twin, group in zip(twins, optimizer.param_groups, strict=True)
    ]
    theirs = torch.optim.AdamW(groups, weight_decay=0)
    for twin, parameter in zip(twins, live, strict=True):
        assert parameter.grad is not None
        twin.grad = parameter.grad.clone()
        theirs.state[twin] = copy.deepcopy(optimizer.state[parameter])
    FrozenAdam(optimizer).step()
    theirs.step()
    for parameter, twin in zip(live, twins, strict=True):
        torch.testing.assert_close(parameter, twin, rtol=1e-12, atol=1e-14)


def test_the_optimizer_is_read_and_never_written() -> None:
    live = parameters(4, 3)
    optimizer = trained(live)
    before = copy.deepcopy(optimizer.state_dict())
    stepper = FrozenAdam(optimizer)
    for seed in range(3):
        set_gradients(live, seed)
        stepper.step()
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys()
    for number, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(after["state"][number][name], value), name


def test_the_learning_rate_is_the_one_at_the_time_of_the_step() -> None:
    live = parameters(4, 3)
    optimizer = trained(live)
    stepper = FrozenAdam(optimizer)
    start = live[0].detach().clone()
    moves = []
    for rate in (0.1, 0.2):
        optimizer.param_groups[0]["lr"] = rate
        set_gradients(live, 5)
        stepper.step()
        moves.append(live[0].detach() - start)
        start = live[0].detach().clone()
    torch.testing.assert_close(moves[1], 2 * moves[0])


def test_a_parameter_without_state_or_without_gradient_is_not_moved() -> None:
    live = parameters(4, 3, 2)
    optimizer = torch.optim.AdamW(live, lr=0.1)
    live[0].grad, live[1].grad = torch.ones_like(live[0]), torch.ones_like(live[1])
    optimizer.step()
    optimizer.zero_grad()
    before = [parameter.detach().clone() for parameter in live]
    live[1].grad, live[2].grad = torch.ones_like(live[1]), torch.ones_like(live[2])
    FrozenAdam(optimizer).step()
    assert torch.equal(live[0], before[0]), "no gradient"
    assert not torch.equal(live[1], before[1])
    assert torch.equal(live[2], before[2]), "no state"
    assert live[2] not in optimizer.state


def test_a_step_without_any_gradient_moves_nothing() -> None:
    live = parameters(4, 3)
    optimizer = trained(live)
    before = [parameter.detach().clone() for parameter in live]
    FrozenAdam(optimizer).step()
    assert all(torch.equal(one, other) for one, other in zip(live, before, strict=True))


@pytest.mark.parametrize("seen", [20, pytest.param(5000, marks=pytest.mark.slow)])
def test_words_that_training_has_not_seen_are_moved_no_further_than_adam_could(seen: int) -> None:
    torch.manual_seed(0)
    words, rate = nn.Embedding(2, 4, dtype=torch.float64), 2e-5
    optimizer = torch.optim.AdamW(words.parameters(), lr=rate)
    for _ in range(seen):
        words(torch.tensor([0])).sum().mul(1e-3).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = words.weight.detach().clone()
    words(torch.tensor([0, 1])).sum().mul(1e-3).backward()
    FrozenAdam(optimizer).step()
    steps = (words.weight.detach() - before).abs().amax(dim=1) / rate
    # Adam's largest step: all gradients before this one were zero.
    furthest = ((1 - 0.999 ** (seen + 1)) / (1 - 0.999)) ** 0.5
    assert steps[0].item() == pytest.approx(1, rel=0.01)
    assert steps[1].item() == pytest.approx(furthest, rel=0.01)
    assert steps[1].item() <= (1 - 0.999) ** -0.5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimizer_without_second_moments_is_refused(momentum: float) -> None:
    live = parameters(4)
    optimizer = torch.optim.SGD(live, lr=0.1, momentum=momentum)
    set_gradients(live, 0)
    optimizer.step()
    with pytest.raises(RecipeError, match="SGD"):
        FrozenAdam(optimizer)


def test_second_moments_that_are_not_adams_are_refused() -> None:
    live = parameters(4)
    optimizer = Adafactor(live, lr=0.1, relative_step=False)
    set_gradients(live, 0)
    optimizer.step()
    assert "exp_avg_sq" in optimizer.state[live[0]]
    with pytest.raises(RecipeError, match="Adafactor"):
        FrozenAdam(optimizer)


def test_what_has_not_stepped_yet_is_refused_for_what_it_is() -> None:
    refuse_without_moments(torch.optim.AdamW(parameters(4)))
    for optimizer in (torch.optim.SGD(parameters(4)), Adafactor(parameters(4))):
        with pytest.raises(RecipeError, match="second moments"):
            refuse_without_moments(optimizer)
