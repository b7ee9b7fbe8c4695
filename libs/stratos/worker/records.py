"""Records that a worker keeps of a request: its submission, the log of what it emitted, how its prompt was made.

The log is the buffer of a slow gateway.  ``RequestRecord.drain`` returns what lies after a cursor per choice,
so deltas that could not be sent coalesce, and ``Attach`` is nothing but setting the cursors back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratos.common.errors import StratosError
from stratos.core.generation import ChoiceDelta, DraftUse, PrefillPath, Receipt, RequestDelta, Submission
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.requests.pins import cache_writes
from stratos.core.requests.records import ChoiceOutput, FinishReason, PositionLogprobs
from stratos.engine.contract.results import RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOrigin:
    """How the prompt's KV came to be here."""

    path: PrefillPath
    prefill_worker_id: str = ""
    prefill_ns: int = 0
    transfer_ns: int = 0
    device_ns: int = 0
    """Time of the source's device."""
    num_computed_tokens: int = 0
    """Tokens of the prompt that the source computed."""
    num_cached_tokens: int = 0
    """Tokens of its beginning that the source's cache had."""


@dataclass(slots=True, kw_only=True)
class ChoiceLog:
    """Everything one choice emitted in this attempt, and how much of it the gateway got."""

    index: int
    base: int
    """Offset of ``token_ids[0]`` among the choice's emitted tokens: what earlier attempts emitted."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_sent: int = 0
    num_told: int = 0
    """Tokens that were sent to a gateway before the last ``rewind``."""
    is_finish_sent: bool = False
    num_kept: int | None = None
    """Emitted tokens that are the choice's answer, as its gateway says, which ended it; ``None``: all."""

    def num_counted(self, *, is_cut: bool) -> int:
        """Tokens of this attempt that count: none of those that were decoded behind a stop string.

        Args:
            is_cut: its gateway is lost: what it was not sent reached no client.
        """
        made = max(self.num_sent, self.num_told) if is_cut else len(self.token_ids)
        return made if self.num_kept is None else min(made, max(0, self.num_kept - self.base))

    def drain(self) -> ChoiceDelta | None:
        """Entries after the cursor; moves it."""
        has_finish = self.finish_reason is not None and not self.is_finish_sent
        if self.num_sent == len(self.token_ids) and not has_finish:
            return None
        begin, self.num_sent = self.num_sent, len(self.token_ids)
        self.is_finish_sent = self.finish_reason is not None
        return ChoiceDelta(
            index=self.index,
            offset=self.base + begin,
            token_ids=self.token_ids[begin:],
            logprobs=self.logprobs[begin:],
            finish_reason=self.finish_reason,
        )

    def rewind(self, num_received: int) -> None:
        """Set the cursor so that everything after ``num_received`` emitted tokens is sent again."""
        self.num_told = max(self.num_told, self.num_sent)
        self.num_sent = min(max(num_received - self.base, 0), len(self.token_ids))
        self.is_finish_sent = False


class RequestRecord:
    """One request from Submit to its last output. Belongs to the event loop."""

    def __init__(self, submission: Submission, numerics_id: str) -> None:
        self.submission = submission
        self.key = submission.request.key
        """The engine's name for it."""
        self.owned_key = self.key
        """Its gateway's name for it: a later attempt than the engine's where another gateway has taken it over."""
        self.num_choices = len(submission.request.choices)
        self.origin: PromptOrigin | None = None
        self.is_admitted = False
        """The engine has it, or keeps blocks and places for it."""
        self.error: StratosError | None = None
        self.stats: RequestStats | None = None
        self.first_token_s: float | None = None
        """End of the engine's step that sampled it, in monotonic seconds."""
        self.last_token_s: float | None = None
        self.prompt_logprobs: tuple[PositionLogprobs, ...] = ()
        self.device_ns = 0
        """Its share of the engine's steps here."""
        self.num_early_tokens = 0
        """Tokens that those steps computed before its first one."""
        self.drafts = DraftUse()
        self.orphan_since_s: float | None = None
        self.is_error_sent = False
        self.is_receipt_sent = False
        self.ended = asyncio.Event()
        self._numerics_id = numerics_id
        self._choices = {
            choice.index: ChoiceLog(index=choice.index, base=len(choice.emitted_ids))
            for choice in submission.request.choices
            if not choice.finished
        }

    @property
    def label(self) -> str:
        """For log lines."""
        return self.submission.trace.label(self.key.request_id)

    @property
    def num_output_tokens(self) -> int:
        """Tokens that this attempt emitted, over all choices."""
        return sum(len(choice.token_ids) for choice in self._choices.values())

    @property
    def is_ended(self) -> bool:
        """Nothing will be appended any more."""
        return self.ended.is_set()

    @property
    def is_sent(self) -> bool:
        """The request is over and the gateway's stream got all of it."""
        if not self.is_ended:
            return False
        return self.is_error_sent or (self.error is None and all(c.is_finish_sent for c in self._choices.values()))

    def append(self, output: ChoiceOutput) -> None:
        """Log what one step produced for one choice."""
        choice = self._choices.get(output.index)
        if choice is None or choice.finish_reason is not None:
            return
        assert output.offset == choice.base + len(choice.token_ids), "the engine skipped or repeated a token"
        choice.token_ids.extend(output.token_ids)
        choice.logprobs.extend(output.logprobs)
        choice.finish_reason = output.finish_reason
        self._check_ended()

    def cancel_choices(self, choices: Mapping[int, int | None]) -> None:
        """End some choices on the gateway's wish; a request that is not in the engine yet joins it without them.

        Args:
            choices: each with the number of emitted tokens that count, where that is known.
        """
        self.submission = self.submission.without_choices(tuple(choices))
        for index, num_kept in choices.items():
            if choice := self._choices.get(index):
                choice.num_kept = num_kept
                choice.finish_reason = choice.finish_reason or FinishReason.ABORT
        self._check_ended()

    def fail(self, error: StratosError) -> None:
        """End the request with an error; what was logged before is still sent."""
        if not self.is_ended:
            self.error = error
            self.ended.set()

    def rewind(self, num_received: dict[int, int]) -> None:
        """Make the next ``drain`` return everything that the gateway reports as missing."""
        self.is_error_sent = self.is_receipt_sent = False
        for index, choice in self._choices.items():
            choice.rewind(num_received.get(index, 0))

    def has_behind(self, num_received: Mapping[int, int]) -> bool:
        """Whether the log has all that follows so many tokens of each choice that goes on."""
        return all(
            (choice := self._choices.get(index)) is not None
            and choice.finish_reason is not FinishReason.ABORT
            and choice.base <= number <= choice.base + len(choice.token_ids)
            for index, number in num_received.items()
        )

    def drain(self) -> RequestDelta | None:
        """Output that the gateway has not got yet, or ``None``; moves the cursors."""
        choices = tuple(delta for choice in self._choices.values() if (delta := choice.drain()) is not None)
        error = None if self.is_error_sent else self.error
        if not choices and error is None:
            return None
        self.is_error_sent = self.error is not None
        receipt = self.receipt() if self.stats is not None and not self.is_receipt_sent else None
        prompt_logprobs = self.prompt_logprobs if receipt is not None else ()
        self.is_receipt_sent = self.stats is not None
        return RequestDelta(
            key=self.owned_key,
            choices=choices,
            error=error,
            receipt=receipt,
            prompt_logprobs=prompt_logprobs,
            drafts=self.drafts if self.is_ended and self.drafts != DraftUse() else None,
        )

    def note_step(self, num_tokens: int, device_ns: int) -> None:
        """A step computed tokens for it; called after the step's first tokens are known."""
        self.device_ns += device_ns
        if self.stats is None:
            self.num_early_tokens += num_tokens

    def count(self, tag: MeterTag) -> UsageCount:
        """Usage of the attempt so far, to be billed by ``tag``."""
        request, num_cached, origin = self.submission.request, tag.num_cached_tokens, self.origin
        num_computed = self.num_early_tokens + (0 if origin is None else origin.num_computed_tokens)
        num_before, is_cut = sum(len(choice.emitted_ids) for choice in request.choices), self.orphan_since_s is not None
        receipt = Receipt() if self.stats is None else self.receipt()
        num_cached = min(max(num_cached, receipt.num_cached_tokens), len(request.prompt_ids))
        decode_s = 0.0 if self.first_token_s is None else (self.last_token_s or self.first_token_s) - self.first_token_s
        return UsageCount(
            key=self.owned_key,
            tenant=request.terms.tenant,
            tag=tag,
            num_prompt_tokens=len(request.prompt_ids),
            num_cached_tokens=num_cached,
            writes=receipt.writes,
            num_output_tokens=num_before + sum(choice.num_counted(is_cut=is_cut) for choice in self._choices.values()),
            queue_ns=receipt.queue_ns,
            prefill_ns=receipt.prefill_ns,
            decode_ns=round(max(0.0, decode_s) * 1e9),
            device_ns=self.device_ns + (0 if origin is None else origin.device_ns),
            num_computed_tokens=min(num_computed, len(request.prompt_ids)) if self.stats is None else 0,
            is_cut=is_cut,
        )

    def _check_ended(self) -> None:
        if all(choice.finish_reason is not None for choice in self._choices.values()):
            self.ended.set()

    def receipt(self) -> Receipt:
        """Where the prompt's KV came from; known from the first token on."""
        assert self.stats is not None
        origin = self.origin or PromptOrigin(path=PrefillPath.UNSPECIFIED)
        scheduled_s = self.stats.first_scheduled_s
        queued_s = 0.0 if scheduled_s is None else max(scheduled_s - self.submission.request.terms.arrival_s, 0.0)
        # what the source of a hand-off had, or an earlier attempt found, was kept or not by then: keeping it here, too,
        # is the platform's wish
        num_before = 0 if (meter := self.submission.meter) is None else meter.num_cached_tokens
        # of a resumed request what it emitted elsewhere may be cached, too, and is no part of the account
        num_cached = min(self.stats.num_cached_tokens, self.stats.num_prompt_tokens)
        return Receipt(
            num_prompt_tokens=self.stats.num_prompt_tokens,
            num_cached_tokens=num_cached,
            num_transferred_tokens=self.stats.num_transferred_tokens,
            num_recomputed_tokens=self.stats.num_recomputed_tokens,
            prefill_path=origin.path,
            prefill_worker_id=origin.prefill_worker_id,
            queue_ns=round(queued_s * 1e9),
            prefill_ns=origin.prefill_ns,
            transfer_ns=origin.transfer_ns,
            numerics_id=self._numerics_id,
            num_pinned_tokens=self.stats.num_pinned_tokens,
            writes=cache_writes(self.stats.pinned_spans, max(origin.num_cached_tokens, num_before), num_cached),
        )
