"""ODM: a bandit that draws datasets by the training loss on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from mixfluence.policy import UNIFORM, InitialField, Vector, softmax
from mixfluence.schema import Fraction, WholeNumber
from mixfluence.strategies.base import Strategy


class ODM(Strategy):
    """Online data mixing (Albalak et al. 2023): Exp3 with the training loss as reward.

    A dataset with a high loss has more left to learn, so it is drawn more often. The reward of a batch is its loss
    divided by the probability of its dataset, averaged over the batches of the dataset. After t batches of K datasets
    the exploration is e_t = min(1 / K, sqrt(ln K / (K t))), and a dataset has the probability
    (1 - K e_t) softmax(e_(t-1) reward) + e_t. It is uniform for the first K ln K batches, and returns to uniform as
    e_t falls.

    It needs no dev set, so it cannot know which datasets help a target, and noisy or mislabelled rows have a high loss
    forever. Prefer `InfDDS` or `MultiDDS` when there is a dev set, and `DoReMi` when losses of the datasets differ
    in scale.

    Cost: 0 training steps; the loss of each batch is read, which synchronises with the device. Memory: 0 parameter
    sizes.

    Attributes:
        init: The distribution during the warm-up. A dataset of weight zero is never drawn.
        warmup_batches: Batches drawn by `init`; their rewards count already.
        memory: Share of the average reward that is kept at each batch of a dataset.
    """

    title = "ODM"
    learns_from_loss = True
    saved = "rewards", "batches"
    name: Literal["odm"] = "odm"
    init: InitialField = UNIFORM
    warmup_batches: WholeNumber = 25
    memory: Fraction = 0.9

    def start(self, sizes: Mapping[str, int]) -> None:
        self._start = softmax(self.init.logits(sizes))
        self._rewards = np.full(len(sizes), np.nan)
        self._batches = 0

    def weights(self, progress: float = 0.0) -> Vector:
        known = np.isfinite(self._rewards)
        if self._batches <= self.warmup_batches or not known.any():
            return self._start
        drawn = self._start > 0
        least = self._exploration(self._batches)
        # A dataset that was never drawn counts with the mean of the others.
        rewards = np.where(known, self._rewards, self._rewards[known].mean())
        greedy = softmax(np.where(drawn, self._exploration(self._batches - 1) * rewards, -np.inf))
        return np.asarray(max(0.0, 1 - drawn.sum() * least) * greedy + least * drawn)

    def observe(self, dataset: int, loss: float) -> None:
        """Average the reward of a batch with earlier ones of its dataset; a loss that is not finite is ignored."""
        reward, before = loss / self.weights()[dataset], self._rewards[dataset]
        self._batches += 1
        if math.isfinite(loss):
            # The first reward is taken as it is: an average that starts at 0 would take dozens of batches to recover.
            self._rewards[dataset] = reward if np.isnan(before) else self.memory * before + (1 - self.memory) * reward

    def _exploration(self, batches: int) -> float:
        """Return the least probability of a dataset after some batches."""
        count = int((self._start > 0).sum())
        return min(1 / count, math.sqrt(math.log(count) / (count * max(1, batches))))
