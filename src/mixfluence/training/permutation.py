"""Random permutations that are computed, not stored.

Storing a shuffle of 100 million rows takes a gigabyte and delays the first batch and every resume. A Feistel network
is a bijection for any round function, so position k of a shuffled epoch can be computed alone, from a key: the state
of a shuffle is one integer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """Hash integers to 64 bits with the finaliser of splitmix64, applied in a chain."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def uniform(*values: int) -> float:
    """Return a pseudo-random number in [0, 1) determined by these integers."""
    return (mix(*values) >> 11) / (1 << 53)


def permuted(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Return the rows at these positions of the permutation of `range(size)` with this key."""
    # A grid barely larger than the range, so that few positions fall outside.
    height = math.isqrt(max(size, 1) - 1) + 1
    width = -(-size // height)
    keys = [np.uint64(mix(key, round_)) for round_ in range(ROUNDS)]
    rows = _shuffle(positions.astype(np.uint64), height, width, keys)
    # Positions outside the range are shuffled again until they fall inside (cycle walking).
    while len(outside := np.flatnonzero(rows >= size)):
        rows[outside] = _shuffle(rows[outside], height, width, keys)
    return rows.astype(np.int64)


def _shuffle(values: NDArray[np.uint64], height: int, width: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Shift every column of a grid by a hash of its index, then every row, in turns."""
    sides = np.uint64(height), np.uint64(width)
    places = list(np.divmod(values, sides[1]))
    for round_, key in enumerate(keys):
        moved, other = round_ % 2, 1 - round_ % 2
        scrambled = (places[other] ^ key) * np.uint64(0xBF58476D1CE4E5B9)
        scrambled = (scrambled ^ scrambled >> np.uint64(29)) * np.uint64(0x94D049BB133111EB)
        places[moved] = (places[moved] + (scrambled >> np.uint64(32))) % sides[moved]
    return np.asarray(places[0] * sides[1] + places[1])
