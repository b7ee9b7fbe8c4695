"""Usage of an ended request, from which its entry in the ledger is made.

    finished                      every token of the answer
    the client left               what had been computed for it
    the platform failed a stream  what was written to it
    the platform failed, else     nothing

The prompt is charged with the first token, once, or with the vectors that were asked for.  A client that leaves before
pays for those tokens of it that were computed, as its worker counts them: the next request with them finds them in the
cache.  Tokens after a stop string,
and a prompt that a recovery computed again, are in none of these.
"""

from __future__ import annotations

from stratos.common.changed import record
from stratos.common.errors import Retryable, StratosError
from stratos.core.generation import Receipt
from stratos.core.ledger.entry import OWN_RANK, RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.core.tenancy.plan import Plan


@record(frozen=True, slots=True, kw_only=True)
class Draft:
    """One prompt of an ended request, as its gateway saw it."""

    request_id: str
    tenant: str
    plan: Plan
    tag: MeterTag
    outcome: RequestOutcome
    counts: TokenCounts
    times: Times
    receipt: Receipt | None = None
    last_attempt: int | None = None
    """Whose count is waited for; ``None`` where nothing ran."""
    waited_us: int | None = None
    """Time that a client waited which left before its first token."""
    is_platform_failure: bool = False
    """The platform, and not the request, was the reason of its failure."""
    is_external: bool = False
    rank: int = OWN_RANK
    external_cost: int = 0
    """Micro-units, where it ran at the external endpoint."""
    prefix_hashes: str = ""
    """Hashes of the prompt's beginnings; empty where there are none."""


def charged_counts(
    num_prompt: int, num_cached: int, num_output: int, *, is_left: bool = False, writes: CacheWrites = NO_WRITES
) -> TokenCounts:
    """Counts that an answer in text is charged by: without a token of it, its prompt is free.

    Args:
        num_prompt: tokens of the prompt.
        num_cached: those of them that a prefix cache had.
        num_output: tokens of the answer that are charged.
        is_left: its client left once the prompt was computed.
        writes: those of the prompt whose KV is kept for the client since this request.
    """
    if not (num_output or is_left):
        return TokenCounts()
    return TokenCounts(num_prompt=num_prompt, num_cached=num_cached, num_output=num_output, writes=writes)


def outcome_of(error: BaseException | None) -> RequestOutcome:
    """The way a request ended; an exception that is no error of ours is the end of its connection or of its task."""
    if error is None:
        return RequestOutcome.FINISHED
    return RequestOutcome.FAILED if isinstance(error, StratosError) else RequestOutcome.ABORTED


def is_platform_failure(error: BaseException | None) -> bool:
    """Whether the platform, and not the request, was the reason of its failure."""
    return isinstance(error, StratosError) and (isinstance(error, Retryable) or error.http_status >= 500)
