"""Transcript of a generation over all its attempts: journals, receipt, log probabilities of the prompt.

A session's reader calls it for every message, so nothing here may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratos.core.generation import ChoiceDelta, DraftUse, Receipt
from stratos.core.ledger.itls import ItlCounter
from stratos.core.ledger.pricing import Times
from stratos.core.requests.records import ChoiceState, FinishReason, PositionLogprobs
from stratos.core.requests.terms import RequestTerms
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.journal import ChoiceJournal, JournalConflict

FOLD_S = 1.0
"""Seconds in which times between tokens are counted together, which is cheaper than one by one."""
NO_DRAFTS = DraftUse()
BEGINNING = (ChoiceState(index=0),)
"""State of a choice that is alone and has no token."""
PassOn = Callable[[int, int], bool]
"""Journals and sends a token of a choice that is alone, at its offset; False, and nothing is done, where it cannot."""


def pass_nothing(offset: int, token_id: int) -> bool:
    """Let every token take the long way."""
    return False


def notify_nothing() -> None:
    """Let what comes lie."""


class Transcript:
    """Belongs to the event loop.

    Args:
        choices: fresh journals, one per choice.
        num_prompt_tokens: of the request.
        terms: of the request; tenant and class are labels.
        fleet: clock and metrics.
        notify: called when there is something to take.
        promised_itl_us: p99 of its windows; ``None`` where none is promised.
        model: base model, a label.
        pass_on: sends one more token of a choice that is alone.
    """

    def __init__(
        self,
        choices: Sequence[ChoiceJournal],
        num_prompt_tokens: int,
        terms: RequestTerms,
        fleet: FleetAccess,
        notify: Callable[[], None],
        promised_itl_us: int | None = None,
        model: str = "",
        pass_on: PassOn = pass_nothing,
    ) -> None:
        self.choices = tuple(choices)
        self._only = self.choices[0] if len(self.choices) == 1 else None
        self.receipt: Receipt | None = None
        """Receipt of the first attempt that sent one: a prompt that a recovery computes again is not the client's."""
        self._drafts: dict[int, DraftUse] = {}
        """By attempt."""
        self.is_exact = True
        """One arithmetic computed all attempts so far, and it promises the same bits again."""
        self.prompt_logprobs: Sequence[PositionLogprobs] = ()
        """Log probabilities of the prompt's tokens from the second on, complete before the first chunk."""
        self.num_inherited_cached: int | None = None
        """Cached prompt tokens, as the gateway that began the answer was told; ``None`` where this one began it."""
        self._num_prompt_tokens = num_prompt_tokens
        self._metrics = fleet.metrics
        self._meters = fleet.metrics.running(terms.label, terms.priority_class, model)
        self._clock = fleet.clock
        self._notify = notify
        self._pass_on = pass_on
        self._started_s = fleet.clock.now()
        self._itls = ItlCounter(promised_itl_us)
        self._token_s: dict[int, float] = {}
        self._first_s: dict[int, float] = {}
        self._told: tuple[tuple[float, int], Times] | None = None
        """Times of a moment; metrics, receipt and bill ask for those of the end."""
        self._gaps_s: list[float] = []
        """Times between tokens that are not counted yet."""
        self._fold_s = 0.0
        """When they are."""

    @property
    def is_complete(self) -> bool:
        """Every choice ended."""
        if self._only is not None:  # as of nearly every request
            return self._only.finish_reason is not None
        for choice in self.choices:  # noqa: SIM110 - asked for every token; a generator takes four times as long
            if choice.finish_reason is None:
                return False
        return True

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far, over all choices."""
        if self._only is not None:
            return len(self._only.ids)
        return sum([len(choice.ids) for choice in self.choices])

    @property
    def num_new_tokens(self) -> int:
        """Tokens that this answer has made; an earlier one that it goes on from made the others."""
        if self._only is not None:
            return len(self._only.ids) - self._only.num_prior
        return sum([len(choice.ids) - choice.num_prior for choice in self.choices])

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens from a prefix cache."""
        if self.num_inherited_cached is not None:
            return self.num_inherited_cached
        return 0 if self.receipt is None else min(self.receipt.num_cached_tokens, self._num_prompt_tokens)

    @property
    def num_delivered_tokens(self) -> int:
        """Tokens that were written to the client's stream, over all choices."""
        return sum(choice.num_delivered for choice in self.choices)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Why each choice that ended did, in the order of the choices."""
        return tuple(choice.finish_reason for choice in self.choices if choice.finish_reason is not None)

    def times(self, received_s: float) -> Times:
        """Times that the client saw, as far as this gateway can tell.

        Args:
            received_s: when the last byte of the request was there, monotonic seconds.
        """
        self.fold()
        if not self._first_s:
            return Times()
        state = received_s, self.num_new_tokens
        if self._told is None or self._told[0] != state:
            self._told = state, self._times(received_s)
        return self._told[1]

    def _times(self, received_s: float) -> Times:
        ttft_us = round(max(0.0, min(self._first_s.values()) - received_s) * 1e6)
        num_gaps = self.num_new_tokens - len(self._first_s)
        if num_gaps <= 0:
            return Times(ttft_us=ttft_us, itls=self._itls.itls())
        gaps_s = sum([last_s - self._first_s[index] for index, last_s in self._token_s.items()])
        return Times(ttft_us=ttft_us, itl_us=round(gaps_s / num_gaps * 1e6), itls=self._itls.itls())

    def waited_us(self, received_s: float) -> int | None:
        """Time so far from the last byte of the request without a first token; ``None`` once there is one."""
        return None if self._first_s else round(max(0.0, self._clock.now() - received_s) * 1e6)

    def states(self) -> tuple[ChoiceState, ...]:
        """Where the next attempt resumes."""
        if (only := self._only) is not None and not only.ids and not only.is_finished:
            return BEGINNING
        return tuple(
            [ChoiceState(index=c.index, emitted_ids=tuple(c.ids), finished=c.is_finished) for c in self.choices]
        )

    def accept(self, delta: ChoiceDelta, now_s: float) -> bool:
        """Journal a delta; returns whether this ended the choice by a stop string.

        Args:
            delta: tokens of one choice, or its end.
            now_s: when they came, monotonic.

        Raises:
            JournalConflict: the attempt must end.
        """
        if delta.index >= len(self.choices):
            raise JournalConflict(f"the request has no choice {delta.index}")
        choice = self.choices[delta.index]
        if choice.finish_reason is not None:
            return False
        if delta.finish_reason is FinishReason.ABORT:
            raise JournalConflict(f"the worker gave up choice {delta.index}")
        num_new = choice.accept(delta)
        if num_new:
            self._measure(delta.index, num_new, now_s)
        return choice.finish_reason is not None and delta.finish_reason is None

    def accept_token(self, offset: int, token_id: int, now_s: float) -> bool:
        """Journal one token of choice 0, as ``accept`` does.

        Args:
            offset: its position among the choice's tokens.
            token_id: of the token.
            now_s: when it came, monotonic.

        Raises:
            JournalConflict: the attempt must end.
        """
        choice = self.choices[0]
        if choice.finish_reason is not None:
            return False
        if choice.accept_token(offset, token_id):
            self._measure(0, 1, now_s)
        return choice.finish_reason is not None

    def pass_on(self, offset: int, token_id: int, now_s: float) -> bool:
        """Journal and send one more token of the only choice, as ``accept_token`` and ``publish`` do; whether it was
        done."""
        if not self._pass_on(offset, token_id):
            return False
        token_s = self._token_s
        self._gaps_s.append(now_s - token_s[0])  # the first one took the long way
        token_s[0] = now_s
        if now_s >= self._fold_s:
            self._fold_s = now_s + FOLD_S
            self.fold()
        return True

    def close(self) -> None:
        """Tell nothing more of what comes."""
        self._notify, self._pass_on = notify_nothing, pass_nothing

    def fold(self) -> None:
        """Count times between tokens that wait for it."""
        if gaps_s := self._gaps_s:
            gaps_s.sort()
            self._meters.output_tokens.inc(len(gaps_s))
            self._meters.itl.observe_sorted(gaps_s)
            self._itls.add_sorted(gaps_s)
            gaps_s.clear()

    def accept_prompt_logprobs(self, logprobs: Sequence[PositionLogprobs]) -> None:
        """Keep those of the first attempt that got so far; later ones do not ask for them."""
        self.prompt_logprobs = self.prompt_logprobs or tuple(logprobs)

    def accept_receipt(self, receipt: Receipt, *, is_new: bool = True) -> None:
        """Keep where the prompt was computed, and count it; one that is not new is of another gateway's attempt."""
        self.receipt = self.receipt or receipt
        self.is_exact &= receipt.is_exact and receipt.numerics_id == self.receipt.numerics_id
        if is_new:
            self._metrics.observe_receipt(receipt)
        else:
            self._metrics.stream_records.labels("attached").inc()

    def accept_drafts(self, attempt: int, drafts: DraftUse) -> None:
        """Keep what became of an attempt's drafts; a worker may say it again."""
        self._drafts[attempt] = drafts

    @property
    def drafts(self) -> DraftUse:
        """Sum over the attempts that a worker ended."""
        total = NO_DRAFTS
        for use in self._drafts.values():
            total = total.plus(use)
        return total

    def publish(self) -> bool:
        """Let the client's side take what is new; ``True`` when no choice is left."""
        self._notify()
        return self.is_complete

    def _measure(self, index: int, num_new: int, now_s: float) -> None:
        self._meters.output_tokens.inc(num_new)
        last_s = self._token_s.get(index)
        if last_s is not None:
            self._meters.itl.observe((now_s - last_s) / num_new)
            self._itls.add(now_s - last_s, num_new)
        else:
            if not self._token_s:
                self._meters.ttft.observe(now_s - self._started_s)
            self._first_s[index] = now_s
        self._token_s[index] = now_s
