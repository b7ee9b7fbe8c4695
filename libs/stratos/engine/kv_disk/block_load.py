"""Blocks of one request on their way from disk to slots of host memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Blocks of one request that are being read."""

    hashes: list[bytes]
    slots: list[int]
    tenant: str
    key: bytes
    is_over: threading.Event = field(default_factory=threading.Event)
    revoked: set[bytes] = field(default_factory=set)
    """Blocks that are to be forgotten, whatever their files hold."""
