"""How many of an answer's tokens are reasoning: by the token that ends it, else by its share of the text."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.text.output.events import CallArguments, CallBegin, OutputEvent, ReasoningDelta, TextDelta
from stratos.text.output.parser import OutputShape
from stratos.text.tokenizer import Tokenizer


class ReasoningTokens:
    """Count of one choice.

    Args:
        shape: of the output.
        tokenizer: knows whether the end of reasoning is one token.
    """

    def __init__(self, shape: OutputShape, tokenizer: Tokenizer) -> None:
        tags = None if shape.frame is not None else shape.reasoning
        self._end_id = None if tags is None else tokenizer.added_tokens.get(tags.end)
        self._num_ids = self._num_chars = self._num_reasoning_chars = 0
        self._num_reasoning_ids: int | None = None
        """Ids up to the end of the reasoning; ``None`` before it."""

    def add(self, token_ids: Sequence[int], events: Sequence[OutputEvent]) -> None:
        """Count a piece of the output: its ids, and the events of its text."""
        if self._num_reasoning_ids is None and self._end_id is not None and self._end_id in token_ids:
            self._num_reasoning_ids = self._num_ids + list(token_ids).index(self._end_id) + 1
        self._num_ids += len(token_ids)
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._num_reasoning_chars += len(event.text)
            self._num_chars += _num_chars(event)

    def count(self, num_tokens: int) -> int:
        """Tokens of reasoning.

        Args:
            num_tokens: of the whole choice; its ids may have been withheld.
        """
        if not self._num_reasoning_chars:
            return 0
        if self._end_id is None or not self._num_ids:
            return round(num_tokens * self._num_reasoning_chars / self._num_chars)
        return self._num_ids if self._num_reasoning_ids is None else self._num_reasoning_ids


def _num_chars(event: OutputEvent) -> int:
    match event:
        case TextDelta(text) | ReasoningDelta(text) | CallArguments(_, text) | CallBegin(_, text):
            return len(text)
    return 0
