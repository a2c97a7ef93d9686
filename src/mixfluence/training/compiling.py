"""A compiled encoder for texts laid end to end: fused kernels, replayed as CUDA graphs.

Small encoders spend their time starting kernels. A graph starts them all at once, but is of one size: batches are
filled up to one of a few sizes with texts that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from mixfluence.training.packing import transformers_in

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

# Texts that fill up a batch: so many that none is long, whatever is missing.
FILLERS = 64
# A batch is filled up by at most this part of it.
FINENESS = 8


# One compilation for all sizes, one graph for each.
GRAPHS: Compiler = partial(torch.compile, dynamic=True, mode="reduce-overhead")


def compile_encoder(model: nn.Module, compiler: Compiler = GRAPHS) -> None:
    """Compile every transformer of a model for texts laid end to end; padded ones run as before.

    Args:
        model: The encoder. What was compiled already stays as it is.
        compiler: Takes a function and returns a faster one.
    """
    for part in transformers_in(model):
        if not isinstance(part.forward, FilledUp):
            # The host calls `forward` itself, not the module, so that `Module.compile` would go unnoticed.
            part.forward = FilledUp(part.forward, compiler)


class FilledUp:
    """A transformer's `forward`, compiled, and called with one of a few numbers of tokens.

    Args:
        forward: The transformer's own.
        compiler: Takes a function and returns a faster one.
    """

    def __init__(self, forward: Callable[..., Any], compiler: Compiler) -> None:
        self._forward = forward
        self._compiled = compiler(forward)

    def __call__(self, **inputs: Any) -> Any:
        """Return what the transformer returns, its last hidden state cut back to the tokens that were given."""
        if "cu_seq_lens_q" not in inputs:
            return self._forward(**inputs)
        tokens = inputs["input_ids"].shape[1]
        output = self._compiled(**fill_up(inputs))
        output["last_hidden_state"] = output["last_hidden_state"][:, :tokens]
        return output


def fill_up(inputs: dict[str, Any]) -> dict[str, Any]:
    """Add texts of zeros to a batch until it has one of a few sizes."""
    tokens = inputs["input_ids"].shape[1]
    missing = filled_size(tokens) - tokens
    bounds = inputs["cu_seq_lens_q"]
    added = torch.arange(1, FILLERS + 1, dtype=torch.int64, device=bounds.device) * missing // FILLERS
    bounds = torch.cat([bounds, (added + tokens).to(bounds.dtype)])
    longest = max(inputs["max_length_q"], -(-missing // FILLERS))
    filled = inputs | {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    filled |= {"max_length_q": longest, "max_length_k": longest}
    for name in ("input_ids", "token_type_ids", "position_ids"):
        if name in filled:
            filled[name] = F.pad(filled[name], (0, missing))
    filled.pop("seq_idx", None)
    return filled


def filled_size(tokens: int) -> int:
    """Return the least size at or above a number of tokens and the fillers, of about eight for every doubling."""
    least = tokens + FILLERS
    step = max(1 << (least.bit_length() - 1), FINENESS) // FINENESS
    return -(-least // step) * step
