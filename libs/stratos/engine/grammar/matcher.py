"""Where one choice is in its grammar. Advanced when a token is known, never rewound; a resume replays the tokens.

What may follow is looked at in copies, which cost a microsecond: drafted tokens leave no trace in the state itself.

An ambiguous grammar (``s: s s | "a"``) costs more with each token, in the square of their number and worse, and no
limit of the parser counts that.  So the CPU time of its tokens and masks is watched: a choice that keeps taking too
much of it has a grammar that cannot go on.  Asking for CPU time costs some microseconds, which is much of a token: the
watch begins once a token or mask took too long by the clock on the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from llguidance import LLMatcher

from stratos.common.clock import SystemClock
from stratos.common.errors import BadRequest
from stratos.engine.grammar.forced_tokens import SEVERAL, UNKNOWN, ForcedPath
from stratos.text.grammar import brief_error

SLOW_S = 0.005
"""A token takes some 10 us; 128 choices at this bound take 0.6 s of a step."""
SLOW_MASK_S = 0.03
"""A mask takes 0.1 ms, a few of them with a vocabulary of 128k tokens."""
MAX_SLOW_TOKENS = 4
"""More end the choice: one may be the first of a lexer's states, or the machine's hiccup."""

_WALL_TIME = SystemClock().now


class GrammarMatcher:
    """State of one choice.

    Args:
        compiled: at the beginning of the output; belongs to this matcher from now on.
        wall_time: seconds, which are never less than those of CPU time.
        cpu_time: seconds of CPU time of the calling thread.
        path: forced tokens that are known from other requests.
    """

    __slots__ = ("_clock", "_cpu_time", "_num_slow", "_path", "_wall_time", "compiled")

    def __init__(
        self,
        compiled: LLMatcher,
        wall_time: Callable[[], float] = _WALL_TIME,
        cpu_time: Callable[[], float] = time.thread_time,
        path: ForcedPath | None = None,
    ) -> None:
        self.compiled, self._path = compiled, path
        self._wall_time = self._clock = wall_time
        self._cpu_time = cpu_time
        self._num_slow = 0

    @property
    def is_over(self) -> bool:
        """The output is complete: nothing but an end token may follow."""
        return bool(self.compiled.is_stopped())

    @property
    def is_slow(self) -> bool:
        """Some token or mask took too long: looking ahead would take as long again."""
        return self._num_slow > 0

    @property
    def known_token(self) -> int:
        """The token that must follow, where its mask is known from another request; else a negative number."""
        return UNKNOWN if self._path is None else self._path.token

    @property
    def can_learn(self) -> bool:
        """The next mask is one that other requests can use."""
        return self._path is not None and self._path.token == UNKNOWN

    def learn(self, token_id: int) -> None:
        """Keep for others that the mask allows this token alone, or ``SEVERAL``."""
        if self._path is not None and not self.compiled.is_error():
            self._path.learn(token_id)

    def forced(self) -> list[int]:
        """Tokens that follow whatever the model draws, as the tokenizer cuts the text; none where there is a choice."""
        if self._path is not None and self._path.token != UNKNOWN:
            return [] if self._path.token == SEVERAL else self._path.ahead()
        return list(self.compiled.deep_copy().compute_ff_tokens())

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens, one after the other, may follow."""
        return int(self.compiled.deep_copy().validate_tokens(list(token_ids)))

    def after(self, token_ids: Sequence[int]) -> list[GrammarMatcher]:
        """States after one of the tokens, after two, and so on, as far as they may follow."""
        states: list[GrammarMatcher] = []
        copy, path = self.compiled.deep_copy(), self._path
        for token_id in token_ids:
            if not copy.consume_token(token_id) or copy.is_error() or copy.is_stopped():
                break
            path = path and path.after(token_id)
            states.append(GrammarMatcher(copy, self._wall_time, self._cpu_time, path))
            copy = copy.deep_copy()
        return states

    def accept(self, token_id: int) -> None:
        """Advance by a token.

        Raises:
            BadRequest: the grammar became too complex or too slow, or forbids the token.
        """
        begin = self._clock()
        # a matcher in error takes end tokens without complaint
        if not self.compiled.consume_token(token_id) or self.compiled.is_error():
            raise BadRequest(f"the grammar cannot go on: {brief_error(self.compiled)}", param="grammar")
        if self._clock() - begin > SLOW_S:
            self._note_slow()
        if self._path is not None:
            self._path = self._path.after(token_id)
        if self._num_slow > MAX_SLOW_TOKENS:
            raise BadRequest("the grammar cannot go on: it is ambiguous and takes too long", param="grammar")

    def fill_mask(self, address: int, size: int) -> None:
        """Fill the mask of the next token, ``size`` bytes in memory, watching the time; any thread, one at a time."""
        begin = self._clock()
        self.compiled.unsafe_compute_mask_ptr(address, size)
        if self._clock() - begin > SLOW_MASK_S:
            self._note_slow()

    def _note_slow(self) -> None:
        """Count what took too long by CPU time; the first such time by the other clock begins the count."""
        self._num_slow += self._clock is self._cpu_time
        self._clock = self._cpu_time

    def replay(self, token_ids: Sequence[int]) -> None:
        """Advance by the tokens of earlier attempts; raises like ``accept``."""
        if token_ids:
            self._path = None
        if token_ids and not self.compiled.consume_tokens(list(token_ids)):
            raise BadRequest("the grammar does not allow the tokens emitted so far", param="choices")
