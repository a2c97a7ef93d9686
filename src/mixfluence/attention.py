"""Attention kernels for batches of text."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel


def shape_free_attention() -> AbstractContextManager[None]:
    """Disable cuDNN's attention, which builds a new plan for every input shape.

    Batches of text have hundreds of shapes. On an H200, planning took 17 s in the first ten steps of MiniLM-L6, more
    than the next hundred steps. The other kernels accept any shape.
    """
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
