"""Reptile steps.

- The running weighted mean equals that of all probes at once: weights are softmax(influence / scale), in any order, or
  the positive parts. An infinite scale gives the plain mean; without a positive influence, `sum` moves nothing.
- A probe whose influence is not finite is skipped, and without any other nothing moves.
- One copy of the parameters is kept for any number of probes.
- The rate as printed in the paper moves no weight by more than rounding.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from mixfluence.errors import RecipeError
from mixfluence.influence import Reptile
from mixfluence.influence.probe import Displacement

WeightsName = Literal["softmax", "sum"]
SHAPES = [(3,), (2, 2)]

several = st.lists(st.integers(-5000, 5000).map(lambda number: number / 1000), min_size=1, max_size=8)


def start() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def ends(count: int) -> list[list[Tensor]]:
    """Where each of some probes leaves the parameters."""
    generator = torch.Generator().manual_seed(1)
    return [
        [at + torch.randn(at.shape, generator=generator, dtype=torch.float64) for at in start()] for _ in range(count)
    ]


def followed(
    influences: list[float],
    probes: list[list[Tensor]],
    *,
    weights: WeightsName = "softmax",
    scale: float = 1.0,
    alpha: float = 1.0,
) -> list[Tensor]:
    """Return the parameters after a round, as a prober would do it."""
    parameters = start()
    displacement = Displacement(parameters, start(), weights, scale)
    for influence, end in zip(influences, probes, strict=True):
        for parameter, value in zip(parameters, end, strict=True):
            parameter.copy_(value)
        displacement.add(parameters, torch.tensor(influence, dtype=torch.float64))
        for parameter, value in zip(parameters, start(), strict=True):
            parameter.copy_(value)
    displacement.apply(parameters, alpha)
    return parameters


def mean_of(shares: NDArray[np.float64], probes: list[list[Tensor]], alpha: float) -> list[Tensor]:
    """Return the start plus a part of the weighted mean displacement, all at once."""
    return [
        at + alpha * torch.einsum("p,p...->...", torch.tensor(shares), torch.stack([end[n] for end in probes]) - at)
        for n, at in enumerate(start())
    ]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def softmax_of(influences: list[float], scale: float) -> NDArray[np.float64]:
    powers = np.exp((np.array(influences) - max(influences)) / scale)
    return np.asarray(powers / powers.sum())


@given(influences=several, scale=st.floats(0.01, 10), alpha=st.floats(0, 2))
def test_streamed_weights_are_the_softmax_of_all_influences(
    influences: list[float], scale: float, alpha: float
) -> None:
    probes = ends(len(influences))
    expected = mean_of(softmax_of(influences, scale), probes, alpha)
    assert_close(followed(influences, probes, scale=scale, alpha=alpha), expected)


@given(influences=several, data=st.data())
def test_the_order_of_probes_does_not_matter(influences: list[float], data: st.DataObject) -> None:
    probes = ends(len(influences))
    order = data.draw(st.permutations(range(len(influences))))
    for weights in ("softmax", "sum"):
        ordered = followed([influences[n] for n in order], [probes[n] for n in order], weights=weights, scale=0.1)
        assert_close(ordered, followed(influences, probes, weights=weights, scale=0.1))


@given(influences=several)
def test_an_infinite_scale_is_the_plain_mean(influences: list[float]) -> None:
    probes = ends(len(influences))
    equal = np.full(len(influences), 1 / len(influences))
    assert_close(followed(influences, probes, scale=math.inf), mean_of(equal, probes, 1.0))


def test_exponents_of_any_size_do_not_overflow() -> None:
    probes = ends(3)
    assert_close(followed([-5.0, 5.0, 1.0], probes, scale=1e-4), probes[1])


@given(influences=several, alpha=st.floats(0, 2))
def test_sum_weights_are_shares_of_the_positive_influence(influences: list[float], alpha: float) -> None:
    positive = np.maximum(influences, 0)
    assume(positive.sum() > 1e-6)
    probes = ends(len(influences))
    expected = mean_of(positive / positive.sum(), probes, alpha)
    assert_close(followed(influences, probes, weights="sum", alpha=alpha), expected)


@given(influences=st.lists(st.floats(-5, 0), min_size=0, max_size=4))
def test_where_nobody_helped_sum_weights_move_nothing(influences: list[float]) -> None:
    found = followed(influences, ends(len(influences)), weights="sum")
    assert all(torch.equal(one, other) for one, other in zip(found, start(), strict=True))


@pytest.mark.parametrize("weights", ["softmax", "sum"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_probe_whose_influence_is_not_a_number_does_not_count(weights: WeightsName, bad: float, place: int) -> None:
    influences, probes = [0.5, 0.2], ends(2)
    broken = [torch.full(shape, torch.nan, dtype=torch.float64) for shape in SHAPES]
    found = followed(
        [*influences[:place], bad, *influences[place:]], [*probes[:place], broken, *probes[place:]], weights=weights
    )
    assert_close(found, followed(influences, probes, weights=weights))


@pytest.mark.parametrize("weights", ["softmax", "sum"])
def test_if_no_probe_counts_nothing_moves(weights: WeightsName) -> None:
    found = followed([math.nan, math.nan], ends(2), weights=weights)
    assert all(torch.equal(one, other) for one, other in zip(found, start(), strict=True))


@pytest.mark.parametrize("probes", [1, 9])
def test_one_copy_of_the_parameters_is_kept(probes: int) -> None:
    parameters = start()
    displacement = Displacement(parameters, start(), "softmax", 1.0)
    for end in ends(probes):
        displacement.add(end, torch.tensor(0.1))
    assert displacement.bytes == sum(tensor.nbytes for tensor in parameters)
    held = [tensor for value in vars(displacement).values() if isinstance(value, list) for tensor in value]
    assert len(held) == 2 * len(SHAPES), "the running sum, and the start that somebody else keeps"


def test_the_part_of_the_way_follows_the_schedule_or_is_given() -> None:
    assert Reptile().alpha(5e-6, 0.25) == 0.25
    assert Reptile(rate="relative").alpha(2e-5, 1) == 1
    assert Reptile(rate="literal").alpha(5e-6, 0.25) == 5e-6
    assert Reptile(rate=0.3).alpha(5e-6, 0.25) == 0.3


@pytest.mark.parametrize("rate", [0, -0.1, math.nan])
def test_a_constant_that_leads_nowhere_is_refused(rate: float) -> None:
    with pytest.raises(RecipeError, match="rate"):
        Reptile(rate=rate)


def test_the_literal_rate_moves_no_weight_by_more_than_rounding() -> None:
    rate = 2e-5
    generator = torch.Generator().manual_seed(0)
    weights = [0.03 * torch.randn(1000, generator=generator)]
    # Three Adam steps move a weight by about three times the learning rate.
    moved = [weights[0] + 3 * rate * torch.randn(1000, generator=generator).sign()]
    ways = {}
    for name in ("literal", "relative"):
        displacement = Displacement(weights, weights, "softmax", math.inf)
        displacement.add([moved[0].clone()], torch.tensor(0.1))
        after = [weights[0].clone()]
        displacement.apply(after, Reptile(rate=name).alpha(rate, 1.0))
        ways[name] = (after[0] - weights[0]).abs().max().item()
    assert ways["literal"] < 1e-8
    assert ways["relative"] == pytest.approx(3 * rate, rel=0.01)
