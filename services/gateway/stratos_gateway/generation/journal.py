"""Journal of the tokens that one choice of an open request has emitted; a recovery resumes from it.

A delta from a worker is checked against the journal before anything of it counts: it must begin where the
journal ends, or repeat what is there.  Then its tokens become text, stop strings are looked for, and what
may be shown waits until the client's stream takes it.  A slow client therefore costs at most the tokens of
its own request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stratos.core.generation import ChoiceDelta
from stratos.core.requests.records import ChoiceState, FinishReason, PositionLogprobs
from stratos.text.detokenizer import Detokenizer
from stratos.text.stop import StopMatcher
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry

CLIENT_REASONS = {FinishReason.GRAMMAR: "stop", FinishReason.EXHAUSTED: "length"}
"""Reasons that the API calls otherwise."""


class JournalConflict(Exception):
    """A worker skipped a token, or contradicts what was emitted before; its attempt must end."""


@dataclass(slots=True)
class _Pending:
    text: list[str] = field(default_factory=list)
    entries: list[TokenEntry] = field(default_factory=list)
    num_taken: int = 0
    """Tokens that were taken already; the rest of ``ids`` is pending."""
    is_finish_taken: bool = False
    is_started: bool = False


class ChoiceJournal:
    """Journal, detokeniser and stop matcher of one choice.

    Args:
        index: of the choice in its request.
        detokenizer: fresh, of this choice.
        stop: fresh matcher of this choice.
        open_ends: ends behind which another answer may go on: what is held back then is for that one to show.
    """

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stop: StopMatcher,
        open_ends: frozenset[FinishReason] = frozenset(),
    ) -> None:
        self.index = index
        self.ids: list[int] = []
        self.num_prior, self.prior_text = 0, ""
        """Tokens of an earlier answer, which come first, and the text of them that it showed."""
        self._open_ends = open_ends
        self.finish_reason: str | None = None
        self.matched_stop: str | None = None
        """Stop string that ended it."""
        self._detokenizer = detokenizer
        self._stop = stop
        self._is_matched = stop.is_active
        self.cause: FinishReason | None = None
        """Why its worker ended it; ``None`` where a stop string, or this side, did."""
        self.cuts: list[int] = []
        """Counts of tokens at which a chunk ends, in order: a client that comes back was shown so far."""
        self._marks: list[tuple[int, int]] = []
        """Cuts that were passed and not taken: number of tokens, and of pending texts."""
        self.num_delivered = 0
        """Tokens that were written to the client's stream."""
        self._next_offset = -1
        """Number of tokens while all have been taken, and one more may be sent past the chunks; else -1."""
        self._num_chars = 0
        self._pending = _Pending()

    @property
    def has_cuts(self) -> bool:
        """Its news may be more than one chunk."""
        return bool(self._marks)

    @property
    def num_untaken(self) -> int:
        """Tokens that no chunk has had."""
        return len(self.ids) - self._pending.num_taken

    @property
    def is_open(self) -> bool:
        """It has ended, and another answer may go on with it."""
        return self.cause is not None and self.cause in self._open_ends

    @property
    def is_finished(self) -> bool:
        """Nothing will be appended any more."""
        return self.finish_reason is not None

    def resume(self, state: ChoiceState) -> None:
        """Go on from where an earlier answer left the choice: what that one showed is not shown again."""
        if state.finished:
            self.finish_reason, self._pending.is_finish_taken = "stop", True
            return
        self.accept(ChoiceDelta(index=self.index, offset=0, token_ids=state.emitted_ids))
        self.num_prior, self.prior_text = len(self.ids), "".join(self._pending.text)
        self._pending = _Pending(num_taken=self.num_prior)

    def accept(self, delta: ChoiceDelta) -> int:
        """Append a worker's delta; returns how many tokens were new.

        Raises:
            JournalConflict: the delta leaves a gap or contradicts the journal.
        """
        if self.finish_reason is not None:
            return 0
        self._next_offset = -1
        if self.cuts:
            return self._accept_cut(delta)
        offset, token_ids, logprobs, finish_reason = delta.offset, delta.token_ids, delta.logprobs, delta.finish_reason
        before = len(self.ids)
        known = before - offset
        is_repeated = known > 0 and list(token_ids[:known]) == self.ids[offset : offset + min(known, len(token_ids))]
        if known and not is_repeated:
            raise JournalConflict(f"choice {self.index} has {len(self.ids)} tokens, the delta begins at {offset}")
        fresh = token_ids[known:] if known else token_ids
        hides_last = finish_reason is FinishReason.STOP and len(fresh) > 0
        if logprobs or self._is_matched:
            self._append_each(fresh, logprobs[known:], hides_last=hides_last)
        else:
            self._append_all(fresh, hides_last=hides_last)
        if finish_reason is not None and not self.is_finished:
            self.cause, reason = finish_reason, CLIENT_REASONS.get(finish_reason, str(finish_reason))
            if self.is_open:
                self.finish_reason = reason
            else:
                self._finish(reason)
        return len(self.ids) - before

    def accept_token(self, offset: int, token_id: int) -> int:
        """``accept`` of one token and nothing else, as nearly all are."""
        ids = self.ids
        if offset != len(ids) or self._is_matched or self.cuts or self.finish_reason is not None:
            return self.accept(ChoiceDelta(index=self.index, offset=offset, token_ids=(token_id,)))
        self._next_offset = -1
        ids.append(token_id)
        if text := self._detokenizer.push_one(token_id):
            self._pending.text.append(text)
        return 1

    def text_alone(self, offset: int, token_id: int) -> str | None:
        """Text of one more token that can be sent past the chunks; ``None`` where it cannot. Nothing is appended."""
        return self._detokenizer.whole_one(token_id) if offset == self._next_offset else None

    def add_sent(self, token_id: int) -> None:
        """Append a token that was sent with its ``text_alone``."""
        self.ids.append(token_id)
        self._pending.num_taken = self._next_offset = self._next_offset + 1
        self.num_delivered += 1

    def _accept_cut(self, delta: ChoiceDelta) -> int:
        """Accept the part of a delta up to the next cut, then the rest."""
        cut, cuts = self.cuts[0], self.cuts[1:]
        num_first = max(0, cut - delta.offset)
        if num_first >= len(delta.token_ids) and len(self.ids) < cut:
            kept, self.cuts = self.cuts, []
            try:
                return self.accept(delta)
            finally:
                self.cuts = kept
        ids, logprobs = delta.token_ids, delta.logprobs
        first = replace(delta, token_ids=ids[:num_first], logprobs=logprobs[:num_first], finish_reason=None)
        offset, logprobs = delta.offset + num_first, logprobs[num_first:]
        rest = replace(delta, offset=offset, token_ids=ids[num_first:], logprobs=logprobs)
        self.cuts = []
        num_new = self.accept(first) if num_first else 0
        if len(self.ids) == cut:
            self._marks.append((cut, len(self._pending.text)))
        self.cuts = cuts
        return num_new + self.accept(rest)

    def take(self) -> ChoiceChunk | None:
        """A chunk of everything new since the last call, or ``None``."""
        if self._marks:
            return self._take_cut()
        pending, ids, reason = self._pending, self.ids, self.finish_reason
        if self.cuts and reason is None:
            return None  # the client has what comes before the cut, and in these chunks
        begin = pending.num_taken
        if begin == len(ids) and (reason is None or pending.is_finish_taken):
            return None
        entries, text = pending.entries, "".join(pending.text)
        if entries:
            pending.entries = []
        chunk = ChoiceChunk(self.index, text, ids[begin:], entries or [], reason, not pending.is_started)
        pending.text.clear()
        pending.num_taken, pending.is_started = len(ids), True
        if reason is None and not (self.cuts or self._is_matched):
            self._next_offset = len(ids)
        if reason is not None:
            chunk.stop, chunk.cause, chunk.is_open = self.matched_stop, self.cause, self.is_open
            pending.is_finish_taken = True
        return chunk

    def _take_cut(self) -> ChoiceChunk | None:
        (num_ids, num_texts), pending = self._marks.pop(0), self._pending
        texts, pending.text = pending.text[:num_texts], pending.text[num_texts:]
        self._marks = [(ids, texts_then - num_texts) for ids, texts_then in self._marks]
        if num_ids == pending.num_taken:
            pending.text = texts + pending.text
            return self.take()
        ids = self.ids[pending.num_taken : num_ids]
        entries, pending.entries = pending.entries[: len(ids)], pending.entries[len(ids) :]
        chunk = ChoiceChunk(
            index=self.index,
            text="".join(texts),
            token_ids=ids,
            entries=entries,
            finish_reason=None,
            is_first=not pending.is_started,
        )
        pending.num_taken, pending.is_started = num_ids, True
        return chunk

    def close(self) -> str:
        """Nothing goes on behind its end: text that was held back for another answer, and that its last chunk lacks."""
        assert self.finish_reason is not None, "else nothing is held back for good"
        self._open_ends = frozenset()
        self._finish(self.finish_reason)
        text, self._pending.text = "".join(self._pending.text), []
        return text

    def end(self, reason: str) -> None:
        """Append nothing more, and show nothing more; does nothing to a choice that has ended."""
        if not self.is_finished:
            self.finish_reason, self._next_offset = reason, -1
            self._pending.text, self._pending.entries = [], []

    def _append_all(self, ids: Sequence[int], *, hides_last: bool) -> None:
        self.ids.extend(ids)
        self._show(self._detokenizer.push(ids[:-1] if hides_last else ids))

    def _append_each(self, ids: Sequence[int], logprobs: Sequence[PositionLogprobs], *, hides_last: bool) -> None:
        """Token by token: a stop string ends the choice at the token that completes it."""
        last = len(ids) - 1
        for position, token_id in enumerate(ids):
            self.ids.append(token_id)
            if logprobs:
                self._pending.entries.append(TokenEntry(logprobs[position], self._num_chars))
            if position == last and hides_last:
                return
            text = self._detokenizer.push((token_id,))
            self._num_chars += len(text)
            if self._match(text):
                return

    def _match(self, text: str) -> bool:
        shown, stop = self._stop.feed(text, len(self.ids))
        self._show(shown)
        if stop is not None:
            self.finish_reason, self.matched_stop = "stop", stop
        return stop is not None

    def _finish(self, reason: str) -> None:
        rest = self._detokenizer.flush()
        if not self._is_matched:
            self._show(rest)
            self.finish_reason = reason
        elif not self._match(rest):
            self._show(self._stop.flush())
            self.finish_reason = reason

    def _show(self, text: str) -> None:
        if text:
            self._pending.text.append(text)
