"""Random orders that are computed, not stored.

Shuffling 100 million rows would cost a gigabyte and a pause before the first batch, and a resumed run
would have to shuffle again. A Feistel network is a bijection whatever its round function, so position
k of a shuffled epoch can be computed alone, from a key: the state of a shuffle is one integer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """Hash integers into 64 well-mixed bits (the finaliser of splitmix64, applied in a chain)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def uniform(*values: int) -> float:
    """Return a number in [0, 1) that depends on nothing but these integers."""
    return (mix(*values) >> 11) / (1 << 53)


def permuted(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Return which rows stand at these positions in the random order of `range(size)` named by `key`."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [np.uint64(mix(key, round_)) for round_ in range(ROUNDS)]
    rows = _shuffle(positions.astype(np.uint64), half, keys)
    # The network permutes the next power of four; what falls outside is sent through again.
    while len(outside := np.flatnonzero(rows >= size)):
        rows[outside] = _shuffle(rows[outside], half, keys)
    return rows.astype(np.int64)


def _shuffle(values: NDArray[np.uint64], half: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        scrambled = (right ^ key) * np.uint64(0xBF58476D1CE4E5B9)
        scrambled = (scrambled ^ scrambled >> np.uint64(29)) * np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ (scrambled >> np.uint64(32)) & mask
    return left << shift | right
