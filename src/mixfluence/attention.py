"""Which attention kernels suit batches of text."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel


def shape_free_attention() -> AbstractContextManager[None]:
    """Leave out cuDNN's attention, which plans anew for every shape it meets.

    Batches of text come in hundreds of shapes. On an H200 the first ten steps of MiniLM-L6 took 17 s of
    such planning, more than the next hundred steps. The other kernels take any shape at once.
    """
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
