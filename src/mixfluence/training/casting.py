"""Weights cast to half precision by one call instead of one for each.

Autocast casts every weight and bias of a linear layer at its use, and its gradient back: in small encoders this is a
sixth of what the processor does in a step, and the processor is what limits them. The values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable


class _Cast(torch.autograd.Function):
    """Casts tensors together, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copies(weights, dtype))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: FunctionCtx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        known = [gradient for gradient in gradients if gradient is not None]
        copies = iter(_copies(known, torch.float32) if known else [])
        return None, *(None if gradient is None else next(copies) for gradient in gradients)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


def cast_together(part: nn.Module) -> None:
    """Have a module cast the trained weights of its linear layers together whenever it runs under autocast."""
    forward = part.forward
    layers = [layer for layer in part.modules() if isinstance(layer, nn.Linear)]
    places = [
        (layer._parameters, name)
        for layer in layers
        for name, weight in layer.named_parameters(recurse=False)
        if weight.requires_grad and weight.dtype == torch.float32
    ]

    def call(*args: Any, **options: Any) -> Any:
        weights = [own[name] for own, name in places]
        device = weights[0].device.type
        if not torch.is_autocast_enabled(device):
            return forward(*args, **options)
        cast = _Cast.apply(torch.get_autocast_dtype(device), *weights)
        try:
            for (own, name), weight in zip(places, cast, strict=True):
                own[name] = weight
            return forward(*args, **options)
        finally:
            for (own, name), weight in zip(places, weights, strict=True):
                own[name] = weight

    if places:
        part.forward = call
