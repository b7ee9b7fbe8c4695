"""Identifiers: random, prefixed by what they name, safe in logs and file names."""

from __future__ import annotations

import os


def new_id(prefix: str) -> str:
    """A fresh id such as ``req-3f2a...``: 96 random bits."""
    return f"{prefix}-{os.urandom(12).hex()}"


def new_incarnation() -> str:
    """Identity of this process start."""
    return new_id("inc")


def new_seed() -> int:
    """A seed for the counter RNG: 63 random bits."""
    return int.from_bytes(os.urandom(8)) >> 1


def new_nonce() -> bytes:
    """128 random bits that are used once."""
    return os.urandom(16)
