"""Influence of the training steps themselves: the dev sets are evaluated after each step of a window.

With momentum b, step u moves the model by rate_u (1 - b) sum_k b^(u-k) g_k, where g_k is the direction of the batch of
step k. To first order the dev metric then improves by z_u = rate_u (1 - b) sum_k b^(u-k) e_k: e_k is the influence of
the dataset of batch k, plus what is special to the batch. This is a linear model of the influences with correlated
noise, which generalised least squares solves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from mixfluence.embedding import float32_products
from mixfluence.influence.influences import Influences, gather
from mixfluence.influence.metrics import DevBatch, Metric
from mixfluence.influence.probe import evaluate
from mixfluence.influence.settings import Batches, Learner, Meter
from mixfluence.influence.snapshot import explain_out_of_memory, preserve, preserve_rng_and_modes

Array = NDArray[np.float64]
# Variance of an evaluation by rounding, in units of the variance of e_k between batches of a dataset: the likeliest.
ROUNDING = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
TINY = 1e-300
# Singular values of the linear model below this part of the largest one are rounding errors.
LEAST_SINGULAR = 1e-9


class Step(NamedTuple):
    """A training step: the datasets of its batches, its learning rate, and by what the optimizer scaled it."""

    datasets: list[int]
    rate: float
    scale: float = 1.0


class StepMeter(Meter):
    """Evaluates the dev sets after successive training steps. Every process does so; the values of the first count.

    It needs no memory, because nothing is rolled back.
    """

    def __init__(self, learner: Learner, metric: Metric) -> None:
        super().__init__(learner, metric)
        self._sign = 1 if metric.higher_is_better else -1
        self.start()

    def start(self) -> None:
        """Begin a window: the next evaluation is what its first step starts from."""
        self._evals: list[list[Tensor]] = []
        self._steps: list[Step] = []

    @explain_out_of_memory("lower strategy.probe.dev_batch_size")
    def record(self, dev: Sequence[DevBatch], datasets: Sequence[int], rate: float, step: int) -> None:
        """Evaluate after the training step of this number, on batches of some datasets at a learning rate."""
        if self._evals:
            self._steps.append(Step(list(datasets), rate, scale_of(self._learner.optimizer, step)))
        self._evals.append(self._evaluate(dev))

    def measure(
        self, datasets: Sequence[int], batches: Batches, dev: Sequence[DevBatch], *, seed: int, spread: float
    ) -> Influences:
        """Return the influences of the datasets that the steps of the window trained on.

        They are those of a step at the largest learning rate of the window. Outside a window, only evaluate.
        """
        targets = [batch.target for batch in dev]
        if not self._evals:
            return gather([], targets, self._evaluate(dev), [], self._sign)
        values = [torch.stack(evals).double().cpu().numpy() for evals in zip(*self._evals, strict=True)]
        momentum = momentum_of(self._learner.optimizer)
        return influences_of_steps(values, self._steps, targets, momentum=momentum, sign=self._sign)

    def state_dict(self) -> dict[str, Any]:
        """Return the window so far, as JSON values."""
        return {"evals": [[values.tolist() for values in evals] for evals in self._evals], "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        exact: dict[str, Any] = {"dtype": torch.float64, "device": self._parameters[0].device}
        self._evals = [[torch.tensor(values, **exact) for values in evals] for evals in state["evals"]]
        self._steps = [Step(*step) for step in state["steps"]]

    def _evaluate(self, dev: Sequence[DevBatch]) -> list[Tensor]:
        with preserve_rng_and_modes(self._learner.modules), _single_precision(self._learner.model):
            return [self._learner.agree(values) for values in evaluate(self._learner, self._metric, dev)]


@contextmanager
def _single_precision(model: nn.Module) -> Iterator[None]:
    """Compute without the half precision of training, whose rounding is as large as the effect of a single step.

    Accelerate keeps the forward pass that it wraps.
    """
    with float32_products("tf32"):
        if (forward := getattr(model, "_original_forward", None)) is None:
            yield
            return
        with preserve("forward", [model]):
            model.forward = forward
            yield


def momentum_of(optimizer: Optimizer) -> float:
    """Return the share of its direction that an optimizer keeps from one step to the next."""
    group = optimizer.param_groups[0]
    return float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0))


def scale_of(optimizer: Optimizer, step: int) -> float:
    """Return by what an optimizer scales a step: Adam makes up for a mean that began at zero."""
    return 1 / (1 - momentum_of(optimizer) ** step) if "betas" in optimizer.param_groups[0] else 1.0


def influences_of_steps(
    evals: Sequence[Array],
    steps: Sequence[Step],
    targets: list[str],
    *,
    momentum: float,
    sign: int,
) -> Influences:
    """Return the influences of datasets that were trained on one after another.

    A dataset that the steps cannot tell from others, or from what came before them, is not measured.

    Args:
        evals: For each target, the metric of each query before the first step and after every step.
        steps: The steps between the evaluations.
        targets: Names of the targets.
        momentum: Share of its direction that the optimizer keeps from one step to the next.
        sign: 1 if a larger metric is better, -1 if a smaller one is.
    """
    base = np.array([values[-1].mean() for values in evals])
    probed = np.unique([dataset for step in steps for dataset in step.datasets]).astype(np.int64)
    none = Influences(probed[:0], probed, targets, base, [np.zeros((0, values.shape[1])) for values in evals], sign)
    improved = [sign * np.diff(values, axis=0) for values in evals]
    if len(steps) < len(probed) + 2 or not all(np.isfinite(part).all() for part in improved):
        return none
    design, batches, rounding = _linear_model(steps, probed, momentum)
    means = np.stack([part.mean(axis=1) for part in improved], axis=1)
    solved = [_least_squares(design, batches + share * rounding, means) for share in ROUNDING]
    best = max(solved, key=lambda one: one.likelihood)
    told = best.told[: len(probed)]
    probed, solve = probed[told], best.solve[: len(probed)][told]
    contrast = np.eye(len(probed)) - 1 / max(1, len(probed))
    spread = np.einsum("ik,kl,il->i", contrast @ solve, best.covariance, contrast @ solve)
    gains = [solve @ part for part in improved]
    noise = spread[:, None, None] * best.noise
    return replace(none, probed=probed, failed=probed[:0], gains=gains, noise=noise)


class _Fit(NamedTuple):
    """Generalised least squares: `solve` maps improvements to influences, of which `told` are determined.

    Noise has a `covariance` between steps times one between targets, `noise`.
    """

    solve: Array
    told: NDArray[np.bool_]
    covariance: Array
    noise: Array
    likelihood: float


def _least_squares(design: Array, covariance: Array, improved: Array) -> _Fit:
    """Fit improvements with correlated noise; the likelihood is the restricted one, up to a constant."""
    root = np.linalg.cholesky(covariance)
    left, sizes, right = np.linalg.svd(np.linalg.solve(root, design), full_matrices=False)
    kept = sizes > LEAST_SINGULAR * sizes[0]
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    solve = (right.T / sizes) @ left.T @ np.linalg.inv(root)
    told = np.isclose((right**2).sum(axis=0), 1)
    rest = np.linalg.solve(root, improved - design @ (solve @ improved))
    free = len(design) - len(sizes)
    noise = rest.T @ rest / free
    volume = 2 * (np.log(np.diag(root)).sum() + np.log(sizes).sum())
    likelihood = -free * np.log(noise.diagonal() + TINY).sum() - volume * improved.shape[1]
    return _Fit(solve, told, covariance, noise, float(likelihood))


def _linear_model(steps: Sequence[Step], probed: NDArray[np.int64], momentum: float) -> tuple[Array, Array, Array]:
    """Return the matrix from influences to improvements, and how their noise is correlated: by batches, by rounding.

    The last column is for the direction that the optimizer brought along from before the first step.
    """
    rates = np.array([step.rate * step.scale for step in steps]) / (max(step.rate for step in steps) or 1.0)
    shares = np.array([[np.mean(np.equal(step.datasets, dataset)) for dataset in probed] for step in steps])
    lags = np.subtract.outer(np.arange(len(steps)), np.arange(len(steps)))
    response = rates[:, None] * (1 - momentum) * np.where(lags >= 0, momentum ** np.maximum(lags, 0), 0.0)
    before = rates * momentum ** np.arange(1, len(steps) + 1)
    design = np.column_stack([response @ shares, before])
    # An evaluation counts in two improvements, with opposite signs.
    between = np.diff(np.eye(len(steps) + 1), axis=0)
    return design, response @ response.T, between @ between.T
