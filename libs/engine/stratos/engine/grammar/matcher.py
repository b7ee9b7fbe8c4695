"""Where one choice is in its grammar. Advanced when a token is known, never rewound; a resume replays the tokens."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from stratos.common.errors import BadRequest
from stratos.text.grammar import brief_error


class GrammarMatcher:
    """State of one choice.

    Args:
        compiled: at the beginning of the output; belongs to this matcher from now on.
    """

    __slots__ = ("compiled",)

    def __init__(self, compiled: LLMatcher) -> None:
        self.compiled = compiled

    @property
    def is_over(self) -> bool:
        """The output is complete: nothing but an end token may follow."""
        return bool(self.compiled.is_stopped())

    def accept(self, token_id: int) -> None:
        """Advance by a token.

        Raises:
            BadRequest: the grammar became too complex, or forbids the token.
        """
        # a matcher in error takes end tokens without complaint
        if not self.compiled.consume_token(token_id) or self.compiled.is_error():
            raise BadRequest(f"the grammar cannot go on: {brief_error(self.compiled)}", param="grammar")

    def replay(self, token_ids: Sequence[int]) -> None:
        """Advance by the tokens of earlier attempts; raises like ``accept``."""
        if token_ids and not self.compiled.consume_tokens(list(token_ids)):
            raise BadRequest("the grammar does not allow the tokens emitted so far", param="choices")
