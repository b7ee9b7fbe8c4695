"""Identifiers: random, prefixed by what they name, safe in logs and file names."""

from __future__ import annotations

import os
from collections import deque

_DRAW_BYTES, _NUM_DRAWS = 16, 256
drawn = deque[bytes]()
"""Random bytes that were read from the system and not used yet: every request needs five draws."""
os.register_at_fork(after_in_child=drawn.clear)  # a child must not draw what its parent draws


def _draw() -> bytes:
    """16 random bytes, used once; threads may draw at the same time."""
    try:
        return drawn.pop()
    except IndexError:
        block = os.urandom(_DRAW_BYTES * _NUM_DRAWS)
        drawn.extend(block[begin : begin + _DRAW_BYTES] for begin in range(_DRAW_BYTES, len(block), _DRAW_BYTES))
        return block[:_DRAW_BYTES]


def new_id(prefix: str) -> str:
    """A fresh id such as ``req-3f2a...``: 96 random bits."""
    return f"{prefix}-{_draw()[:12].hex()}"


def new_incarnation() -> str:
    """Identity of this process start."""
    return new_id("inc")


def new_seed() -> int:
    """A seed for the counter RNG: 63 random bits."""
    return int.from_bytes(_draw()[:8]) >> 1


def new_nonce() -> bytes:
    """128 random bits that are used once."""
    return _draw()
