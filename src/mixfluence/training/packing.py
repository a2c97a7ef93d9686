"""Texts laid end to end instead of side by side, so that no padding is computed.

The host does the same where flash-attn is installed (`unpad_inputs`); here torch's own kernel is enough. Whether a
model comes to the same embeddings either way is not known from its class but tried out, on rows of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

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

logger = logging.getLogger(__name__)

ATTENTION = "mixfluence_packed"
# Kinds of attention that a model may ask for by these names, and gets only if its texts are padded.
UNKNOWN = ("sliding_window", "softcap", "position_bias", "s_aux")
# Features that tell queries from documents.
SIDES = ("task", "prompt_length")
# Longest texts are rounded up to this, so that compiled code meets few lengths.
LENGTH_STEP = 64
# Largest distance of two embeddings, 1 - cosine, that rounding explains: in fp32, and in half precision.
TOLERANCE, HALF_TOLERANCE = 1e-6, 1e-3


@dataclass(frozen=True)
class Packing:
    """How a model wants texts laid end to end.

    Attributes:
        first_position: Number of a text's first position, which models in the line of RoBERTa do not count from 0.
        alike: Whether queries and documents pass through the model alike but for their tokens, and so may pass
            together.
    """

    first_position: int = 0
    alike: bool = True

    def features(self, layout: TokenLayout, texts: Sequence[NDArray[np.int32]]) -> dict[str, Any]:
        """Return the model's input for these texts, by the names that the host's pooling and losses know."""
        lengths = np.array([len(ids) for ids in texts], np.int64)
        bounds = np.concatenate([[0], lengths.cumsum()])
        positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths) + self.first_position
        runs = {
            "input_ids": np.concatenate(texts).astype(np.int64),
            "position_ids": positions,
            "seq_idx": np.repeat(np.arange(len(texts)), lengths),
            **{name: np.zeros_like(positions) for name in layout.zeros},
        }
        offsets = torch.from_numpy(bounds.astype(np.int32))
        longest = -(-int(lengths.max()) // LENGTH_STEP) * LENGTH_STEP
        sides = SIDES if self.alike else ()
        constants = {name: value for name, value in layout.constants.items() if name not in sides}
        return {
            **{name: torch.from_numpy(run)[None] for name, run in runs.items()},
            **{"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest},
            **constants,
        }


def learn_packing(
    model: SentenceTransformer,
    columns: Mapping[str, Sequence[NDArray[np.int32]]],
    layouts: Mapping[str, TokenLayout],
    precision: AbstractContextManager[Any],
) -> Packing | None:
    """Find out how texts can be laid end to end for a model, and prepare the model for it.

    Args:
        model: The encoder, on its device.
        columns: A few texts of every column.
        layouts: How the model wants each column padded.
        precision: Under which it will be trained.

    Returns:
        None if it must have padding.
    """
    if not all(layout.padded for layout in layouts.values()) or not prepare_attention(model):
        return None
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), precision:
            return _try_out(model, columns, layouts)
    except (RuntimeError, TypeError, ValueError) as error:
        logger.info("texts are padded: %s", error)
        return None
    finally:
        for part, mode in modes:
            part.training = mode


def prepare_attention(model: nn.Module) -> bool:
    """Let a model's attention take texts laid end to end beside padded ones; return whether it can."""
    inner = transformers_in(model)
    if not inner or any(part.config._attn_implementation not in {"sdpa", ATTENTION} for part in inner):
        return False
    for part in inner:
        part.set_attn_implementation(ATTENTION)
    return True


def transformers_in(model: nn.Module) -> list[PreTrainedModel]:
    """Return the transformers of an encoder."""
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Give a model's transformers back their own attention and their own code at the end."""
    found = [(part, part.config._attn_implementation, vars(part).get("forward")) for part in transformers_in(model)]
    try:
        yield
    finally:
        for part, attention, forward in found:
            part.set_attn_implementation(attention)
            vars(part).pop("forward", None)
            if forward is not None:
                part.forward = forward


def _try_out(
    model: SentenceTransformer,
    columns: Mapping[str, Sequence[NDArray[np.int32]]],
    layouts: Mapping[str, TokenLayout],
) -> Packing | None:
    def embed(features: Callable[[TokenLayout, list[NDArray[np.int32]]], dict[str, Any]]) -> Tensor:
        inputs = [features(layouts[name], list(texts)) for name, texts in columns.items()]
        return torch.cat(embed_columns(model, send_to_device(inputs, model.device)))

    padded = embed(TokenLayout.features)

    def distance(packing: Packing) -> float:
        return 1 - float(F.cosine_similarity(embed(packing.features).double(), padded.double()).min())

    pad_id = next(iter(layouts.values())).pad_id
    apart = min((Packing(first, alike=False) for first in (0, pad_id + 1)), key=distance)
    rounded = torch.is_autocast_enabled(model.device.type) or model.dtype in (torch.float16, torch.bfloat16)
    tolerance = HALF_TOLERANCE if rounded else TOLERANCE
    if (found := distance(apart)) > tolerance:
        logger.info("texts are padded: without padding the model's embeddings are %.1e away", found)
        return None
    together = replace(apart, alike=True)
    return together if distance(together) <= tolerance else apart


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
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each text, the host's way if texts are padded; the signature is the host's."""
    if cu_seq_lens_q is None:
        options = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
    if asked := [name for name in UNKNOWN if others.get(name) is not None]:
        raise ValueError(f"attention with {asked[0]} needs padding")
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    attend = _flash if query.is_cuda else _masked
    return attend(query, key, value, cu_seq_lens_q, max_length_q, dropout, causal, scaling)[None], None


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    dropout: float,
    causal: bool,
    scaling: float | None,
) -> Tensor:
    q, k, v = (heads.squeeze(0).transpose(0, 1) for heads in (query, key, value))
    # Torch's public `varlen_attn` is the same kernel without dropout.
    forward = torch.ops.aten._flash_attention_forward
    output: Tensor = forward(q, k, v, bounds, bounds, longest, longest, dropout, causal, False, scale=scaling)[0]
    return output


def _masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    dropout: float,
    causal: bool,
    scaling: float | None,
) -> Tensor:
    """The same in time that grows with the square of all texts together: to check the rest where there is no GPU."""
    numbers = torch.arange(query.shape[2], device=query.device)
    text = torch.bucketize(numbers, bounds[1:], right=True)
    mask = text[:, None] == text[None]
    if causal:
        mask &= numbers[:, None] >= numbers[None]
    grouped = key.shape[1] != query.shape[1]
    output = F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling, enable_gqa=grouped)
    return output.squeeze(0).transpose(0, 1)


def _mask(attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """No mask without padding: attention is kept within texts by their bounds."""
    mask: Tensor | None = None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **options)
    return mask


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _mask)
