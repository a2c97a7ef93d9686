"""Sequences packed without padding.

sentence-transformers packs sequences if flash-attn is installed (`unpad_inputs`); here torch's own kernel is enough.
Whether a model computes the same embeddings either way is tested on rows of the run: its class does not tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mixfluence.data.tokens import TokenLayout
from mixfluence.influence import embed_columns
from mixfluence.influence.snapshot import preserve_rng_and_modes

logger = logging.getLogger(__name__)

ATTENTION = "mixfluence_packed"
# Options of attention that only the padded kernel supports.
PADDED_ONLY = ("softcap", "position_bias", "s_aux")
# Features that distinguish queries from documents, which are packed together.
SIDES = ("task", "prompt_length")
# Maximum lengths are rounded up to a multiple of this, so that graphs see few of them.
LENGTH_STEP = 64
# Largest 1 - cosine of two embeddings that rounding explains: in fp32, and in half precision.
TOLERANCE, HALF_TOLERANCE = 1e-6, 1e-3

# Queries, keys and values.
Heads = tuple[Tensor, Tensor, Tensor]


class Sight(NamedTuple):
    """What a token sees of its sequence: all of it, what comes before, or what is nearer than a window."""

    longest: int
    causal: bool
    window: int | None


@dataclass(frozen=True)
class Packing:
    """How to pack sequences for a model."""

    # Position id of the first token, which is not 0 in models like RoBERTa.
    first_position: int = 0

    def features(self, layout: TokenLayout, texts: Sequence[NDArray[np.int32]]) -> dict[str, Any]:
        """Return the model's input for these texts, under the names that sentence-transformers' modules know."""
        lengths = np.array([len(ids) for ids in texts], np.int64)
        bounds = np.concatenate([[0], lengths.cumsum()])
        positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1] - self.first_position, lengths)
        tokens = {
            "input_ids": np.concatenate(texts, dtype=np.int64),
            "position_ids": positions,
            "seq_idx": np.repeat(np.arange(len(texts)), lengths),
            **{name: np.zeros_like(positions) for name in layout.zeros},
        }
        longest = -(-int(lengths.max()) // LENGTH_STEP) * LENGTH_STEP
        return {
            **{name: torch.from_numpy(values)[None] for name, values in tokens.items()},
            "cu_seq_lens_q": torch.from_numpy(bounds.astype(np.int32)),
            "max_length_q": longest,
            **{name: value for name, value in layout.constants.items() if name not in SIDES},
        }


def learn_packing(
    model: SentenceTransformer,
    columns: Mapping[str, Sequence[NDArray[np.int32]]],
    layouts: Mapping[str, TokenLayout],
    precision: AbstractContextManager[Any],
) -> Packing | None:
    """Learn from a few texts of every column how to pack for a model, and prepare it; None if it needs padding."""
    if not all(layout.padded for layout in layouts.values()) or not prepare_attention(model):
        return None

    def embed(features: Callable[[TokenLayout, list[NDArray[np.int32]]], dict[str, Any]]) -> Tensor:
        inputs = [features(layouts[name], list(texts)) for name, texts in columns.items()]
        return torch.cat(embed_columns(model, send_to_device(inputs, model.device))).double()

    candidates = Packing(0), Packing(next(iter(layouts.values())).pad_id + 1)
    try:
        with preserve_rng_and_modes(model), torch.no_grad(), precision:
            model.eval()
            rounded = torch.is_autocast_enabled(model.device.type) or model.dtype in (torch.float16, torch.bfloat16)
            padded, *packed = map(embed, (TokenLayout.features, *(packing.features for packing in candidates)))
            distances = [1 - float(F.cosine_similarity(own, padded).min()) for own in packed]
    except (RuntimeError, TypeError, ValueError) as error:
        logger.info("sequences are padded, because packing failed: %s", error)
        return None
    tolerance = HALF_TOLERANCE if rounded else TOLERANCE
    # Relative positions allow both. Rounding must not choose between them, or a resumed run might choose the other.
    best = int(distances[1] < distances[0] - tolerance / 10)
    if distances[best] > tolerance:
        logger.info("sequences are padded: packed, the model's embeddings differ by %.1e", distances[best])
        return None
    return candidates[best]


def prepare_attention(model: nn.Module) -> bool:
    """Make a model's attention accept packed sequences as well as padded ones; return whether it can."""
    inner = transformers_in(model)
    if not inner or any(part.config._attn_implementation not in {"sdpa", ATTENTION} for part in inner):
        return False
    for part in inner:
        part.set_attn_implementation(ATTENTION)
    return True


def transformers_in(model: nn.Module) -> list[PreTrainedModel]:
    """Return the transformer models inside an encoder."""
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


@contextmanager
def preserve_forward(model: nn.Module) -> Iterator[None]:
    """Restore the attention and `forward` of a model's transformers at the end."""
    found = [(part, part.config._attn_implementation, vars(part).get("forward")) for part in transformers_in(model)]
    try:
        yield
    finally:
        for part, attention, forward in found:
            part.set_attn_implementation(attention)
            vars(part).pop("forward", None)
            if forward is not None:
                part.forward = forward


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each sequence; padded ones use transformers' SDPA. The signature is that of transformers."""
    if cu_seq_lens_q is None:
        others |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, "sliding_window": sliding_window}
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return output
    if asked := [name for name in PADDED_ONLY if others.get(name) is not None]:
        raise ValueError(f"attention with {asked[0]} is only supported for padded sequences")
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    window = sliding_window if sliding_window and sliding_window < max_length_q else None
    sight = Sight(max_length_q, causal, window)
    attend = _flash if query.is_cuda else _masked
    return attend((query, key, value), cu_seq_lens_q, sight, dropout, scaling)[None], None


def _flash(heads: Heads, bounds: Tensor, sight: Sight, dropout: float, scale: float | None) -> Tensor:
    q, k, v = (head.squeeze(0).transpose(0, 1) for head in heads)
    # Torch's public `varlen_attn` is this kernel without dropout.
    forward = torch.ops.aten._flash_attention_forward
    sizes = bounds, bounds, sight.longest, sight.longest
    causal, window = sight.causal, {}
    if sight.window is not None:
        # With a window, causal means that nothing on the right is seen.
        side = sight.window - 1
        causal, window = False, {"window_size_left": side, "window_size_right": 0 if sight.causal else side}
    output: Tensor = forward(q, k, v, *sizes, dropout, causal, False, scale=scale, **window)[0]
    return output


def _masked(heads: Heads, bounds: Tensor, sight: Sight, dropout: float, scale: float | None) -> Tensor:
    """Reference for machines without a GPU; its cost is quadratic in the total length."""
    query, key, value = heads
    numbers = torch.arange(query.shape[2], device=query.device)
    text = torch.bucketize(numbers, bounds[1:], right=True)
    mask = text[:, None] == text[None]
    back = numbers[:, None] - numbers[None]
    if sight.causal:
        mask &= back >= 0
    if sight.window is not None:
        mask &= back.abs() < sight.window
    grouped = key.shape[1] != query.shape[1]
    output = F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale, enable_gqa=grouped)
    return output.squeeze(0).transpose(0, 1)


def _mask(attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Return no mask for packed sequences, which are separated by their bounds."""
    mask: Tensor | None = None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **options)
    return mask


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _mask)
