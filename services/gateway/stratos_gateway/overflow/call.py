"""Facts of a request at the external endpoint that are not in its body, and how much of an answer is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratos_gateway.access.contract import Gate
from stratos_gateway.overflow.bill import ExternalBill

_PIECES_PER_TOKEN, _MORE_PIECES = 2, 16
_BYTES_PER_TOKEN, _MORE_BYTES = 64, 1024
"""Endpoints count tokens in their own way, so these are far from what one sends that keeps to ``max_tokens``: it has a
piece of text for a token or for several, of some four bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCall:
    """One request."""

    model: str
    """Served name of the base model, whichever name the client uses."""
    max_tokens: int
    """Limit of each choice."""
    num_prompt_tokens: int
    """Counted by our tokenizer."""
    within_s: float
    """Time until its first token is due."""
    count_tokens: Callable[[str], int]
    """Number of tokens of a text by our tokenizer, where the endpoint does not say."""
    received_s: float
    """When the last byte of the request was there, monotonic."""
    promised_itl_us: int | None = None
    bill: ExternalBill | None = None
    gate: Gate | None = None
    """Before what the endpoint says; ``None`` is always open."""

    @property
    def max_pieces(self) -> int:
        """Pieces of text of one choice, beyond which the endpoint ignores ``max_tokens``."""
        return _PIECES_PER_TOKEN * self.max_tokens + _MORE_PIECES

    @property
    def max_bytes(self) -> int:
        """The same of its text."""
        return _BYTES_PER_TOKEN * self.max_tokens + _MORE_BYTES
