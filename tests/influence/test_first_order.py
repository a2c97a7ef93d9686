"""First-order probes measure what one small step would do, without taking it.

- Their influences are the limit of those of momentum-free probes as the learning rate goes to zero.
- Everything is restored bit by bit, whatever fails.
- Dot products of sketches are those of the vectors: exactly if the vectors are short, else within their error.
- Settings that need a step are refused.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from mixfluence.influence import DevBatch, Influences, Metric, Probe, info_nce_metric, soft_ndcg_metric
from mixfluence.influence.first_order import sketch
from mixfluence.strategies import InfDDS
from tests.influence.test_probe import (
    Broken,
    SmallLearner,
    all_words,
    batches,
    columns,
    dev_batches,
    encoder,
    everything,
    learner,
    static,
)

__all__ = ["learner", "static"]  # fixtures


def measure(learner: SmallLearner, metric: Metric, dev: list[DevBatch] | None = None, **options: object) -> Influences:
    probe = Probe.model_validate(options)
    model = encoder(learner)
    meter = probe.meter(learner, metric, None)
    return meter.measure([0, 1, 3], batches(model, 1), dev or dev_batches(model), seed=3, spread=1.0)


@pytest.mark.parametrize("metric", [info_nce_metric(0.1), soft_ndcg_metric(0.1)], ids=["loss", "ndcg"])
def test_the_influence_is_the_limit_of_small_steps(static: SmallLearner, metric: Metric) -> None:
    # Pieces as targets of their own: a probe would use the rows of all pieces as negatives.
    model = encoder(static)
    dev = [DevBatch(batch.target, [piece]) for batch in dev_batches(model) for piece in batch.pieces]
    slope = measure(static, metric, dev, state="first-order", learning_rate=1e-4)
    steps = measure(static, metric, dev, state="momentum-free", learning_rate=1e-4)
    assert np.abs(slope.on_targets()).max() > 1e-5
    assert slope.on_targets() == pytest.approx(steps.on_targets(), rel=0.02, abs=1e-6)
    assert slope.base == pytest.approx(steps.base, rel=1e-6)


def test_a_target_has_a_gain_for_each_piece_and_errors_from_them(static: SmallLearner) -> None:
    found = measure(static, info_nce_metric(0.1), state="first-order")
    assert [gain.shape for gain in found.gains] == [(3, 2), (3, 2)]
    assert (found.errors() > 0).any()


def test_everything_is_restored(learner: SmallLearner) -> None:
    before = everything(learner)
    found = measure(learner, info_nce_metric(0.1), state="first-order", learning_rate=0.05)
    assert everything(learner) == before
    assert found.probed.tolist() == [0, 1, 3]


def test_a_dataset_with_a_broken_gradient_is_reported(static: SmallLearner) -> None:
    model = encoder(static)
    broken = Broken(model, all_words(model))
    bad = columns(model, 1)
    bad[0]["broken"] = True
    meter = Probe(state="first-order").meter(broken, info_nce_metric(0.1), None)
    found = meter.measure(
        [0, 1], lambda dataset: [bad if dataset else columns(model, 0)], dev_batches(model), seed=0, spread=1.0
    )
    assert found.failed.tolist() == [1]
    assert found.probed.tolist() == [0]


def test_sketches_of_short_vectors_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    like = [torch.empty(7, 3), torch.empty(5)]
    one, two = ([torch.randn(p.shape, generator=generator) for p in like] for _ in range(2))
    exact = sum(float((a * b).sum()) for a, b in zip(one, two, strict=True))
    assert float(sketch(one, like, 1, size=64) @ sketch(two, like, 1, size=64)) == pytest.approx(exact, rel=1e-5)
    assert not sketch([None, None], like, 1, size=64).any()


def test_sketches_of_long_vectors_are_right_on_average_and_within_their_error() -> None:
    generator = torch.Generator().manual_seed(0)
    like, size = [torch.empty(100, 30), torch.empty(1_500)], 128
    one = [torch.randn(p.shape, generator=generator) for p in like]
    two = [a + torch.randn(a.shape, generator=generator) for a in one]
    exact = sum(float((a * b).sum()) for a, b in zip(one, two, strict=True))
    norms = [sum(float(a.square().sum()) for a in vector) ** 0.5 for vector in (one, two)]
    found = np.array([float(sketch(one, like, n, size) @ sketch(two, like, n, size)) for n in range(300)])
    error = norms[0] * norms[1] / size**0.5
    assert found.std() < 2 * error
    assert abs(found.mean() - exact) < 4 * found.std() / 300**0.5


@pytest.mark.parametrize(
    "settings",
    [{"inner_steps": 3}, {"reptile": "relative"}, {"probe": {"reliability": 0.8}}],
    ids=["several steps", "reptile", "rows by reliability"],
)
def test_settings_that_need_a_step_are_refused(settings: dict[str, object]) -> None:
    probe = {"state": "first-order"} | dict(settings.pop("probe", {}))  # type: ignore[call-overload]
    with pytest.raises(ValidationError, match="first-order"):
        InfDDS.model_validate({"probe": probe, **settings})


def test_a_loss_without_gradient_is_refused(static: SmallLearner) -> None:
    flat = Metric(lambda model, batch: torch.ones(4), higher_is_better=False)
    with pytest.raises(Exception, match="differentiable"):
        measure(static, flat, state="first-order")
    assert isinstance(static.model, nn.Module)
