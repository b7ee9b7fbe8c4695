"""Text of a growing sequence of token ids.

Law: the pieces returned by ``push`` and ``flush``, put together, equal ``Tokenizer.decode`` of all ids; after the text
of other ids they are what those and these decode to together, without the text of those alone.
A piece never ends inside of a character: the bytes of an unfinished one are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from stratos.text.tokenizer import Tokenizer


class Detokenizer:
    """State of one choice.

    Args:
        tokenizer: shared.
        skip_special: special tokens give no text.
        is_continued: text stands before, so a blank at the beginning is no mark of a text's beginning (SentencePiece).
        shown_ids: special tokens that give text all the same.
    """

    __slots__ = ("_bytes_of", "_decoder", "_hidden", "_strip_blank")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        is_continued: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes_of = tokenizer.token_bytes
        hidden = tokenizer.special_ids if skip_special else frozenset[int]()
        self._hidden = hidden - shown_ids if shown_ids else hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_blank = tokenizer.strips_leading_blank and not is_continued

    def push(self, ids: Iterable[int]) -> str:
        """Text that is certain after these ids; may be empty."""
        hidden, bytes_of = self._hidden, self._bytes_of
        return self._trim(self._decoder.decode(b"".join([bytes_of(i) for i in ids if i not in hidden])))

    def flush(self) -> str:
        """The rest, at the end of the sequence: an unfinished character becomes U+FFFD."""
        return self._trim(self._decoder.decode(b"", final=True))

    def _trim(self, text: str) -> str:
        if self._strip_blank and text:
            self._strip_blank = False
            return text.removeprefix(" ")
        return text
