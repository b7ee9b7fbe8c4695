"""Records of embedding: what a worker is asked to compute, and what comes back.

An embedding is one vector per input: the hidden states after the model's last norm, pooled over the input's tokens,
cut to the dimensions asked for, and scaled to length 1 where the model wants that.  Nothing is sampled.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stratos.core.requests.records import RequestKey
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms
from stratos.core.trace import NO_TRACE, TraceContext


class PoolingKind(enum.StrEnum):
    """How the states of all tokens become one vector."""

    LAST = "last"
    """The state of the last token, which has seen all others."""
    MEAN = "mean"
    """The mean over all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """One input to embed."""

    key: RequestKey
    """Shares its name space with generation requests; ``abort`` ends either."""
    token_ids: tuple[int, ...]
    pooling: PoolingKind
    normalizes: bool = True
    """Scale the vector to length 1, after it was cut."""
    num_dimensions: int | None = None
    """Leading components that are kept; ``None`` keeps all."""
    terms: RequestTerms = DEFAULT_TERMS


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedCall:
    """Inputs that a worker embeds together: what they have in common, and the inputs."""

    inputs: tuple[tuple[int, ...], ...]
    model_digest: str
    pooling: PoolingKind
    normalizes: bool
    num_dimensions: int | None
    terms: RequestTerms = DEFAULT_TERMS
    request_id: str = ""
    attempt: int = 0
    trace: TraceContext = NO_TRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """The vector of one input."""

    key: RequestKey
    values: bytes
    """float32, little endian, one after the other."""
    num_cached_tokens: int
    """Tokens whose KV came from the prefix cache."""
