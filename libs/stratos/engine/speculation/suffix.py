"""Drafts from what a tenant's earlier requests said: what followed the last tokens there.

The request's own tokens come first (``ngram``).  Where they have no guess, the newest place is taken at which an ended
request of the same tenant and cache salt had the same last tokens.  Tenants share nothing.  The memory is bounded: of
a tenant the newest tokens are kept, and of tenants those that came last.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence as Series

from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.ngram import NgramProposer
from stratos.engine.speculation.proposer import Proposer

CONTEXTS = (8, 4)
"""Last tokens that must have come before; the longer ones first."""
MAX_REQUEST_TOKENS, MAX_PART_TOKENS = 4096, 16_384
"""Last tokens of a request that are remembered, and tokens of a tenant, in two parts of which the older one goes."""
MAX_TENANTS = 32
"""Some 20 MB of each at most: a token is in an entry of each context."""
SEPARATOR = -1
"""Between two requests: nothing is drafted across."""


class TextPart:
    """Tokens of ended requests, and where each context occurred last."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self._places: dict[bytes, int] = {}

    def add(self, tokens: Series[int]) -> None:
        """Remember a request."""
        begin = len(self.tokens)
        self.tokens.extend(array("i", tokens))
        self.tokens.append(SEPARATOR)
        for size in CONTEXTS:
            for end in range(begin + size, len(self.tokens) - 1):
                self._places[self.tokens[end - size : end].tobytes()] = end

    def follow(self, context: bytes, max_tokens: int) -> list[int]:
        """Tokens that followed the context; none where it never came."""
        place = self._places.get(context)
        if place is None:
            return []
        found = self.tokens[place : place + max_tokens].tolist()
        return found[: found.index(SEPARATOR)] if SEPARATOR in found else found


class TenantTexts:
    """Ended requests of one tenant, the newest ones."""

    def __init__(self) -> None:
        self._parts = deque([TextPart()], maxlen=2)

    @property
    def num_tokens(self) -> int:
        return sum(len(part.tokens) for part in self._parts)

    def add(self, tokens: Series[int]) -> None:
        """Remember a request."""
        if len(self._parts[-1].tokens) + MAX_REQUEST_TOKENS > MAX_PART_TOKENS:
            self._parts.append(TextPart())
        self._parts[-1].add(tokens[-MAX_REQUEST_TOKENS:])

    def follow(self, tokens: Series[int], max_tokens: int) -> list[int]:
        """Tokens that followed the last of ``tokens``; none where they never came."""
        for size in CONTEXTS:
            context = array("i", tokens[-size:]).tobytes()
            for part in reversed(self._parts):
                if found := part.follow(context, max_tokens):
                    return found
        return []


class SuffixProposer(Proposer):
    """Guesses from a request's own tokens, then from those of its tenant."""

    name = "suffix"

    def __init__(self) -> None:
        self._own = NgramProposer()
        self._texts: OrderedDict[tuple[str, bytes], TenantTexts] = OrderedDict()

    @property
    def num_tokens(self) -> int:
        """Tokens remembered of all tenants."""
        return sum(texts.num_tokens for texts in self._texts.values())

    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        found = self._own.propose(sequence, state, max_tokens)
        if found:
            return found
        texts = self._texts.get(_owner(sequence))
        return texts.follow(sequence.tokens, max_tokens) if texts is not None else ()

    def forget(self, sequence: Sequence) -> None:
        owner = _owner(sequence)
        texts = self._texts.setdefault(owner, TenantTexts())
        texts.add(sequence.tokens)
        self._texts.move_to_end(owner)
        if len(self._texts) > MAX_TENANTS:
            self._texts.popitem(last=False)

    def forget_tenant(self, tenant: str) -> None:
        for owner in [owner for owner in self._texts if owner[0] == tenant]:
            del self._texts[owner]


def _owner(sequence: Sequence) -> tuple[str, bytes]:
    return sequence.terms.tenant, sequence.terms.cache_salt
