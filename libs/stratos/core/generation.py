"""Records between a gateway and a decode worker about one attempt of a generation.

Submission ->                                 the request, and where its prompt may be computed
<- RequestDelta {ChoiceDelta ..., Receipt}    tokens as they come, and once where the prompt was computed
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.common.changed import record
from stratos.common.errors import StratosError
from stratos.core.kv import promises_exact
from stratos.core.ledger.usage import MeterTag
from stratos.core.placement import WorkerRef
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.core.requests.records import EngineRequest, FinishReason, PositionLogprobs, RequestKey
from stratos.core.trace import NO_TRACE, TraceContext


@record(frozen=True, slots=True, kw_only=True)
class Submission:
    """One attempt of a request; choices with ``emitted_ids`` resume."""

    request: EngineRequest
    model_digest: str
    handoff_id: str = ""
    """Minted by the router for this placement."""
    prefill: tuple[WorkerRef, ...] = ()
    """Where the prompt may be computed, best first; none means at the decode worker."""
    trace: TraceContext = NO_TRACE
    required_features: frozenset[str] = frozenset()
    """Features that the worker must offer by the gateway's judgement; the worker judges for itself, too."""
    meter: MeterTag | None = None
    """Facts that it is billed by; ``None`` for a request that is not billed."""

    def without_choices(self, indexes: tuple[int, ...]) -> Submission:
        """The same, with some choices finished: the engine runs the others alone."""
        choices = tuple(
            dataclasses.replace(choice, finished=choice.finished or choice.index in indexes)
            for choice in self.request.choices
        )
        return dataclasses.replace(self, request=dataclasses.replace(self.request, choices=choices))


class PrefillPath(enum.StrEnum):
    """Where a prompt's KV came from."""

    UNSPECIFIED = "unspecified"
    HANDOFF = "handoff"
    LOCAL_SHORT_TAIL = "local_short_tail"
    LOCAL_NO_ENDPOINT = "local_no_endpoint"
    LOCAL_FALLBACK = "local_fallback"
    LOCAL_PROMPT_LOGPROBS = "local_prompt_logprobs"
    LOCAL_TAIL = "local_tail"
    LOCAL_SPILL = "local_spill"
    EXTERNAL = "external"


@record(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Account of a request's prompt at the decode worker."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_transferred_tokens: int = 0
    num_recomputed_tokens: int = 0
    prefill_path: PrefillPath = PrefillPath.UNSPECIFIED
    prefill_worker_id: str = ""
    """Empty when it was this worker."""
    queue_ns: int = 0
    """From Submit to the first scheduled work."""
    prefill_ns: int = 0
    transfer_ns: int = 0
    numerics_id: str = ""
    """Numerics of the worker that sampled."""
    num_pinned_tokens: int = 0
    """First tokens of the prompt whose KV its breakpoints keep there."""
    writes: CacheWrites = NO_WRITES
    """Tokens of them that are kept since this attempt, or for longer than before."""

    @property
    def is_exact(self) -> bool:
        """The worker's arithmetic promises the same bits again."""
        return not self.is_external and promises_exact(self.numerics_id)

    @property
    def is_external(self) -> bool:
        """No worker of this platform ran the request, but an external endpoint."""
        return self.prefill_path is PrefillPath.EXTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftUse:
    """Drafts of a request at one worker, over all choices."""

    num_drafted: int = 0
    """Drafted tokens that passes verified."""
    num_accepted: int = 0
    """Drafted tokens that the model drew, too."""
    num_cut: int = 0
    """Drafted tokens that its grammar forbids, so that no pass had them."""

    def plus(self, other: DraftUse) -> DraftUse:
        return DraftUse(
            num_drafted=self.num_drafted + other.num_drafted,
            num_accepted=self.num_accepted + other.num_accepted,
            num_cut=self.num_cut + other.num_cut,
        )


@dataclass(slots=True, kw_only=True)  # frozen ones take three times as long to make, and each token makes two
class ChoiceDelta:
    """New tokens of one choice."""

    index: int
    offset: int
    """Position of the first token among the choice's emitted tokens."""
    token_ids: Sequence[int]
    logprobs: Sequence[PositionLogprobs] = ()
    """One per token if they were asked for."""
    finish_reason: FinishReason | None = None


@dataclass(slots=True, kw_only=True)
class RequestDelta:
    """News of one request that its gateway has not seen yet."""

    key: RequestKey
    choices: tuple[ChoiceDelta, ...] = ()
    error: StratosError | None = None
    """The request failed at the worker, and is over there."""
    receipt: Receipt | None = None
    """Account of the prompt, with the first tokens."""
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    """Log probabilities of the prompt's tokens from the second on; with the receipt, if the request wants them."""
    drafts: DraftUse | None = None
    """Use of drafts, with the last tokens, if there were any."""

    @property
    def num_places(self) -> int:
        """Places with log probabilities."""
        return len(self.prompt_logprobs) + sum([len(choice.logprobs) for choice in self.choices])
