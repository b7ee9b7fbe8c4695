"""State that continues an answer which ended before its time, exactly as if it had not been interrupted.

There is no hidden state to save.  Noise is a function of seed, choice and position; penalties, ``min_tokens`` and
``max_tokens`` count the emitted tokens; a grammar's matcher is replayed over them; KV is computed again.  So the
request as it was, the tokens it emitted and the identity of what computed them are the whole state.

The request comes again from its client, and is known by its binding.  Tenant, class and deadline are not part of it:
they are decided again, from the key of the client that asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratos.core.requests.records import ChoiceState

TokenOf = Callable[[Sequence[Sequence[ChoiceState]]], str]
"""Makes the continuation token of an answer from its choices by prompt; "" where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationState:
    """An answer between two tokens."""

    answer_id: str
    """Id of the answer that ended."""
    choices: tuple[tuple[ChoiceState, ...], ...]
    """By prompt; those that are not finished go on, and the others have no tokens here."""
    seed: int
    model_digest: str
    adapter_digest: str
    binding: str
    """Hash of the request."""
    expires_unix_s: int

    @property
    def name(self) -> str:
        """The same however often the answer's end is told, so that it is gone on from once."""
        lengths = [[len(choice.emitted_ids) for choice in choices] for choices in self.choices]
        return hashlib.sha256(f"{self.answer_id} {lengths}".encode()).hexdigest()[:32]


def left_open(index: int, emitted_ids: Sequence[int], *, is_open: bool) -> ChoiceState:
    """A choice at the end of an answer, which goes on or does not."""
    return ChoiceState(index=index, emitted_ids=tuple(emitted_ids) if is_open else (), finished=not is_open)


def num_prior_tokens(choices: Sequence[ChoiceState]) -> int:
    """Tokens of an earlier answer that choices go on from."""
    return sum(len(choice.emitted_ids) for choice in choices) if choices else 0
