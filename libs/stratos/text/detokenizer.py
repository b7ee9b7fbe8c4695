"""Text of a growing sequence of token ids.

Law: the pieces returned by ``push`` and ``flush``, put together, equal ``Tokenizer.decode`` of all ids; after the text
of other ids they are what those and these decode to together, without the text of those alone.
A piece never ends inside of a character: the bytes of an unfinished one are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from stratos.text.tokenizer import Tokenizer


class Detokenizer:
    """State of one choice.

    Args:
        tokenizer: shared.
        skip_special: special tokens give no text.
        is_continued: text stands before, so a blank at the beginning is no mark of a text's beginning (SentencePiece).
        shown_ids: special tokens that give text all the same.
    """

    __slots__ = ("_bytes_of", "_held", "_hidden", "_strip_blank", "_whole_text")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        is_continued: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._whole_text = tokenizer.whole_text
        hidden = tokenizer.special_ids if skip_special else frozenset[int]()
        self._hidden = hidden - shown_ids if shown_ids else hidden
        self._held = b""
        """Beginning of a character."""
        self._strip_blank = tokenizer.strips_leading_blank and not is_continued

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain after these ids; may be empty."""
        if len(ids) == 1:
            return self.push_one(ids[0])
        hidden, bytes_of = self._hidden, self._bytes_of
        return self._text(b"".join([bytes_of(i) for i in ids if i not in hidden]))

    def push_one(self, token_id: int) -> str:
        """``push`` of one id, as nearly always."""
        if token_id in self._hidden:
            return ""
        if not (self._held or self._strip_blank) and (text := self._whole_text(token_id)):
            return text
        return self._text(self._bytes_of(token_id))

    def whole_one(self, token_id: int) -> str | None:
        """``push_one`` where nothing is held back before or behind the token; else ``None``, and nothing is done."""
        if token_id in self._hidden:
            return ""
        if self._held or self._strip_blank:
            return None
        return self._whole_text(token_id) or None

    def flush(self) -> str:
        """The rest, at the end of the sequence: an unfinished character becomes U+FFFD."""
        return self._text(b"", is_last=True) if self._held else ""

    def _text(self, raw: bytes, *, is_last: bool = False) -> str:
        data = self._held + raw if self._held else raw
        text, num_used = codecs.utf_8_decode(data, "replace", is_last)
        self._held = data[num_used:]
        if self._strip_blank and text:
            self._strip_blank = False
            return text.removeprefix(" ")
        return text
