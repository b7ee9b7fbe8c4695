"""Who is asked first: rendezvous hashing, so that gateways agree without talking to each other.

Each (key, address) pair has a score, and a key prefers the addresses by it.  When a router leaves, only its own keys
move, each to its second choice; when it is back, they return.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def preferred(key: str, addresses: Iterable[str]) -> list[str]:
    """The addresses, the key's first choice first."""
    return sorted(addresses, key=lambda address: _score(key, address), reverse=True)


def _score(key: str, address: str) -> bytes:
    return blake2b(f"{key}\0{address}".encode(), digest_size=8).digest()
