"""Row selection before any sampler: of each dataset, the rows are kept whose gradients help the dev sets most."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from mixfluence.data.mixture import Mixture
from mixfluence.data.rows import ROWS_PER_BATCH, RowSet, text_key
from mixfluence.embedding import Embedder
from mixfluence.errors import DataError
from mixfluence.recipe import rows_to_keep

logger = logging.getLogger(__name__)

# Higher than in training: a row is compared with all others of its batch, not with the nearest alone, whose direction
# is mostly noise. docs/method-index.md has figures, on which it was chosen.
TEMPERATURE = 0.2
# Query and passage prompt of a dataset; None for the encoder's own.
RowPrompts = tuple[str | None, str | None]
OWN: RowPrompts = (None, None)


class Selected(NamedTuple):
    """Rows of a dataset that were kept, of how many, and the lowest similarity among them."""

    kept: int
    rows: int
    lowest: float


def select_rows(
    mixture: Mixture,
    dev: Mapping[str, RowSet],
    encoder: SentenceTransformer,
    *,
    keep: float,
    batch_size: int,
    seed: int = 0,
    prompts: Mapping[str, RowPrompts] | None = None,
) -> tuple[Mixture, dict[str, Selected]]:
    """Return the share `keep` of each dataset whose gradients are most similar to those of a dev set, as LESS does.

    A row's score is the cosine of its gradient and the mean of the dev rows' unit gradients, the maximum over dev
    sets, because a row has to help one of them only. See `RowGradients` for the parameters. The negatives of a row are
    those of a random batch of its dataset, which depends on the seed. Costs one forward pass over every row, which is
    cached.
    """
    known = prompts or {}
    embedders = {
        own: (Embedder(encoder, "query", own[0]), Embedder(encoder, "passage", own[1]))
        for own in dict.fromkeys(known.get(name, OWN) for name in (*mixture, *dev))
    }

    def gradients(name: str, rows: RowSet) -> Iterator[tuple[NDArray[np.int64], RowGradients]]:
        sides = [embedder.vectors(rows) for embedder in embedders[known.get(name, OWN)]]
        keys = _text_keys(rows)
        order = np.random.default_rng(seed).permutation(len(rows))
        for batch in np.array_split(order, -(-len(rows) // batch_size)):
            queries, answers = (torch.from_numpy(side[batch].astype(np.float64)) for side in sides)
            equal = (keys[batch][:, None] == keys[batch][None]).any(axis=-1)
            yield batch, RowGradients(queries, answers, TEMPERATURE, torch.from_numpy(equal))

    for name, rows in dev.items():
        if len(rows) < 2:
            raise DataError(f"{name}: select needs at least 2 rows of a dev set, found {len(rows)}")
    targets = [unit_mean(found for _, found in gradients(name, rows)) for name, rows in dev.items()]
    kept, facts = {}, {}
    for name, rows in mixture.items():
        count = rows_to_keep(name, len(rows), keep)
        scores = np.zeros(len(rows))
        for batch, found in gradients(name, rows):
            scores[batch] = torch.stack([found.cosines(target) for target in targets]).amax(dim=0).numpy()
        places = np.sort(np.argsort(-scores, kind="stable")[:count])
        facts[name] = Selected(count, len(rows), float(scores[places].min()))
        logger.info("select: %d of %d rows of %s, of similarity %.3f or more", count, len(rows), name, facts[name][2])
        digest = xxhash.xxh3_64_hexdigest(places.tobytes())
        kept[name] = rows.take(places.tolist(), f"{rows.fingerprint}-selected-{digest}")
    return Mixture(kept), facts


class RowGradients:
    """Gradient of each row's InfoNCE in a batch, with respect to a linear layer after the encoder, at the identity.

    With unit vectors u of queries and v of passages, cosines c, and r the softmax of c / temperature over the passages
    minus one for the row's own, row i has, up to a constant factor, the symmetric gradient

        G_i = sum_j r_ij (u_i v_j' + v_j u_i' - c_ij (u_i u_i' + v_j v_j')),

    so that norms and products follow from the vectors, and no gradient is ever stored. `equal` says which rows share
    a text, and so are no negatives of each other.
    """

    def __init__(self, queries: Tensor, passages: Tensor, temperature: float, equal: Tensor) -> None:
        self._queries, self._passages = (torch.nn.functional.normalize(side, dim=-1) for side in (queries, passages))
        own = torch.eye(len(queries), dtype=torch.bool)
        self._cosines = self._queries @ self._passages.T
        logits = (self._cosines / temperature).masked_fill(equal & ~own, -torch.inf)
        residuals = logits.softmax(dim=1) - own.double()
        self._weighted = residuals * self._cosines
        self._pulls = residuals @ self._passages
        self._sums = self._weighted.sum(dim=1)

    def norms(self) -> Tensor:
        """Return the Frobenius norm of each row's gradient."""
        weighted, pulls, sums = self._weighted, self._pulls, self._sums
        between = (self._passages @ self._passages.T).square()
        squares = 2 * pulls.square().sum(dim=1) - sums.square() + ((weighted @ between) * weighted).sum(dim=1)
        squares -= 4 * (weighted * self._cosines * (pulls @ self._passages.T)).sum(dim=1)
        squares += 2 * sums * (weighted * self._cosines.square()).sum(dim=1)
        return squares.clamp(min=0).sqrt()

    def unit_sum(self) -> Tensor:
        """Return the sum of the rows' gradients, each scaled to unit norm."""
        scales = _inverse(self.norms())
        half = (scales[:, None] * self._pulls).T @ self._queries
        rest = self._queries.T @ ((scales * self._sums)[:, None] * self._queries)
        return half + half.T - rest - self._passages.T @ ((scales @ self._weighted)[:, None] * self._passages)

    def cosines(self, direction: Tensor) -> Tensor:
        """Return the cosine of each row's gradient and a symmetric direction of unit norm."""
        queries, passages = self._queries @ direction, self._passages @ direction
        products = 2 * (self._pulls * queries).sum(dim=1) - self._sums * (self._queries * queries).sum(dim=1)
        products -= self._weighted @ (self._passages * passages).sum(dim=1)
        return products * _inverse(self.norms())


def unit_mean(batches: Iterator[RowGradients]) -> Tensor:
    """Return the direction of the mean unit gradient."""
    total = torch.stack([batch.unit_sum() for batch in batches]).sum(dim=0)
    return total * _inverse(total.norm())


def _inverse(norms: Tensor) -> Tensor:
    # A row without negatives, or one that is perfectly ranked, has no gradient but rounding.
    return torch.where(norms > 1e-12, 1 / norms.clamp(min=1e-12), 0.0)


def _text_keys(rows: RowSet) -> NDArray[np.uint64]:
    """Return hashes of the anchor and the positive of each row."""
    table = rows.rows.select_columns(["anchor", "positive"])
    chunks = (zip(batch["anchor"], batch["positive"], strict=True) for batch in table.iter(ROWS_PER_BATCH))
    return np.array([[text_key(text) for text in pair] for chunk in chunks for pair in chunk], np.uint64)
