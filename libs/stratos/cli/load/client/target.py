"""The server that a load is sent to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server, and how it is asked."""

    base_url: str
    """Up to and including ``/v1``."""
    is_chat: bool = False
    """Asks the chat route with words, else the completions route with token ids."""
    vocab_size: int = 4096
    ignores_eos: bool = True
    """Answers have exactly the length that was drawn; a server that does not know ``ignore_eos`` may refuse it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of each body."""
    timeout_s: float = 600.0
