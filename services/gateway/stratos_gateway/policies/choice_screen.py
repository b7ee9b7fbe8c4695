"""The text of one choice on its way to the client: what may be shown, and where a hit ends it.

    text -> window of the rules -> blocks for the classifier -> shown

Both work at places of the text, never at the borders of its pieces, so a text has the same fate however it arrives.
Token ids and log probabilities would tell what is held back: they come with the end, and not at all after a hit.
"""

from __future__ import annotations

from dataclasses import replace

from stratos.text.filtering.window import TextWindow
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry
from stratos_gateway.policies.screen import OUTPUT, Screen

FILTERED = "content_filter"


class ChoiceScreen:
    """State of one choice.

    Args:
        screen: of the request.
    """

    def __init__(self, screen: Screen) -> None:
        self.is_hit = False
        self._screen = screen
        self._window = TextWindow(screen.rules)
        self._block = ""
        """Passed the rules and waits for the classifier."""
        self._before = ""
        """Block that was classified last: the classifier reads it again with the next one."""
        self._token_ids: list[int] = []
        self._num_counted = 0
        """Number of ``_token_ids`` whose text, or what stands in its place, was shown."""
        self._entries: list[TokenEntry] = []

    async def feed(self, chunk: ChoiceChunk) -> ChoiceChunk | None:
        """The part of a chunk, and of what was held back, that may be shown; ``None`` for nothing.

        Raises:
            ContentCheckDown: see ``Screen``.
        """
        if self.is_hit:
            return None
        self._token_ids += chunk.token_ids
        self._entries += chunk.entries
        is_last = chunk.finish_reason is not None
        passed = self._window.feed(chunk.text, is_last=is_last)
        if self._window.hit is not None:
            self._screen.count(self._window.hit.rule, OUTPUT)
        text = await self._classified(passed, is_last=is_last or self._window.hit is not None)
        if self._window.hit is not None or self.is_hit:
            self.is_hit = True
            text += self._screen.policy.replacement
            return self._without_ids(chunk, text, FILTERED)
        if is_last:
            told, counted = self._token_ids, self._num_counted
            return replace(chunk, text=text, token_ids=told, entries=self._entries, num_withheld=-counted)
        return self._without_ids(chunk, text, None) if text or chunk.is_first else None

    def _without_ids(self, chunk: ChoiceChunk, text: str, finish_reason: str | None) -> ChoiceChunk:
        num_new = len(self._token_ids) - self._num_counted
        self._num_counted += num_new
        return replace(chunk, text=text, token_ids=[], entries=[], finish_reason=finish_reason, num_withheld=num_new)

    async def _classified(self, passed: str, *, is_last: bool) -> str:
        """Text that the classifier lets through; after a hit ``is_hit`` is set."""
        if not self._screen.asks_classifier:
            return passed
        self._block += passed
        size, shown = self._screen.policy.classifier_block_chars, ""
        while len(self._block) >= size or (is_last and self._block):
            block, self._block = self._block[:size], self._block[size:]
            if await self._screen.is_classified(self._before + block, OUTPUT):
                self.is_hit = True
                return shown
            self._before = block
            shown += block
        return shown
