"""What becomes known of a request on its way through the gateway; its texts are not among it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class RequestFacts:
    """Filled by the parts that learn of it; read once, when the answer has ended."""

    is_inference: bool = False
    """A tenant asked for tokens or vectors."""
    tenant: str = ""
    """Empty until the credential was checked."""
    key_id: str = ""
    plan: str = ""
    priority_class: int = 0
    model: str = ""
    """As the client calls it, once such a model was found."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    ttft_us: int | None = None
    """From the arrival to the first token of any choice."""
    itl_us: int | None = None
    """Mean over the gaps between tokens of one choice."""
    error: str = ""
    """Code of the error that the client got, as a status or within its stream."""
