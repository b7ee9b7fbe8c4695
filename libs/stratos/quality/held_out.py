"""Held-out texts as windows of tokens: each window is scored alone, and is the unit that intervals resample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.text.tokenizer import Tokenizer

PIECE_CHARS = 60_000
"""A tokenizer takes no text of any length; a longer one goes to it in pieces."""
MIN_WINDOWS = 8
"""Fewer say nothing of how much a figure varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutText:
    """A text with a name."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, hexadecimal: what calibrations record of theirs."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindow:
    """Consecutive tokens of a text; the first one is context alone."""

    text_name: str
    token_ids: tuple[int, ...]


def read_texts(paths: Sequence[Path]) -> list[HeldOutText]:
    """Texts of files, named by them without their ending.

    Raises:
        BadRequest: no file, one that cannot be read as UTF-8, or two of one name.
    """
    texts = []
    for path in paths:
        try:
            texts.append(HeldOutText(name=path.stem, text=path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"{path} cannot be read as UTF-8 text: {error}", param="--text") from error
    if len({text.name for text in texts}) < len(texts):
        raise BadRequest("two texts have the same name; rename one", param="--text")
    return texts


def cut_windows(texts: Sequence[HeldOutText], tokenizer: Tokenizer, size: int, max_tokens: int) -> list[TokenWindow]:
    """Whole windows of all texts, each text with its share of ``max_tokens``, spread evenly over it.

    Args:
        texts: in their order.
        tokenizer: of the models.
        size: tokens of a window, the first included.
        max_tokens: of all windows together.

    Raises:
        BadRequest: fewer than ``MIN_WINDOWS``.
    """
    windows: list[TokenWindow] = []
    share = max(1, max_tokens // size // max(1, len(texts)))
    for text in texts:
        ids = _token_ids(text.text, tokenizer)
        begins = range(0, len(ids) - size + 1, size)
        wanted = min(share, len(begins))
        chosen = [begins[number * len(begins) // wanted] for number in range(wanted)]
        windows += [TokenWindow(text_name=text.name, token_ids=tuple(ids[begin : begin + size])) for begin in chosen]
    if len(windows) < MIN_WINDOWS:
        raise BadRequest(
            f"the texts fill {len(windows)} windows of {size} tokens, at least {MIN_WINDOWS} are needed; "
            "give more text or smaller windows",
            param="--text",
        )
    return windows


def _token_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Tokens of a text, cut behind a line where it is too long to be encoded at once."""
    ids: list[int] = []
    begin = 0
    while begin < len(text):
        end = begin + PIECE_CHARS
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        ids += tokenizer.encode_plain(text[begin:end])
        begin = end
    return ids
