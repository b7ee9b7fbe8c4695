"""The tokenizer of a model folder: ids for text, text and bytes for ids.

Two encoders are held over the same files.  ``encode`` reads special tokens in the text (the caller owns the
whole prompt); ``encode_plain`` treats their spelling as ordinary text (the text comes from a client that must
not speak for the template).  Decoding is done from a table of bytes, so that the incremental detokeniser
and ``decode`` cannot differ.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from stratos.common.errors import ContextLengthExceeded, InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.core.requests.limits import MAX_COUNTED_TOKENS
from stratos.text.token_bytes import strips_leading_blank, token_bytes_table


class Tokenizer:
    """Encodes and decodes; safe to share between threads and requests.

    Args:
        definition: content of ``tokenizer.json``.
        config: content of ``tokenizer_config.json``; may be empty.
        parsed: ``definition`` as JSON, where the caller has it.
    """

    def __init__(
        self, definition: str, config: dict[str, Any] | None = None, parsed: dict[str, Any] | None = None
    ) -> None:
        # One thread per call: a pool of the library's own would not survive a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._aware = _build(definition, knows_special=True)
        self._plain = _build(definition, knows_special=False)
        parsed = json.loads(definition) if parsed is None else parsed
        self.config = config or {}
        self._bytes = token_bytes_table(parsed)
        self._whole_texts: dict[int, str] = {}
        """Of tokens that ``whole_text`` was asked for; empty for those that end inside of a character."""
        self._max_token_bytes = max(map(len, self._bytes), default=1)
        self.strips_leading_blank = strips_leading_blank(parsed)
        added = parsed.get("added_tokens", ())
        self.added_tokens: dict[str, int] = {t["content"]: t["id"] for t in added}
        """Tokens whose spelling is always cut out as one: special ones, and those of the text as well."""
        self.special_tokens: dict[str, int] = {t["content"]: t["id"] for t in added if t["special"]}
        self.special_ids = frozenset(self.special_tokens.values())
        self.strip_rules = {t["content"]: (t["lstrip"], t["rstrip"]) for t in added if t["special"]}

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json`` and, if there is one, ``tokenizer_config.json``.

        Raises:
            InvalidCheckpoint: missing or malformed files, or a kind of tokenizer that is not supported.
        """
        path = folder / "tokenizer.json"
        parsed = read_json(path)
        config = folder / "tokenizer_config.json"
        try:
            return cls(path.read_text(encoding="utf-8"), read_json(config) if config.exists() else {}, parsed)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidCheckpoint(f"{path} is not a tokenizer that can be read: {repr(error)[:300]}") from error

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._bytes)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text in which special tokens are read as such; raises ``ContextLengthExceeded`` for a huge one."""
        return list(_encoding(self._aware.encode_batch_fast([text], add_special_tokens=add_special_tokens)).ids)

    @cached_property
    def surroundings(self) -> tuple[list[int], list[int]]:
        """Ids that ``add_special_tokens`` puts before and behind a text."""
        plain, whole = self.encode("a"), self.encode("a", add_special_tokens=True)
        begin = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
        return whole[:begin], whole[begin + len(plain) :]

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text whose special tokens are mere spelling; never returns a special id."""
        return list(_encoding(self._plain.encode_batch_fast([text], add_special_tokens=False)).ids)

    def encode_ends(self, text: str, *, is_plain: bool) -> tuple[list[int], list[int]]:
        """Ids like ``encode``, or like ``encode_plain``, and how many characters of the text are before each one's end;
        takes longer."""
        encoder = self._plain if is_plain else self._aware
        encoding = _encoding(encoder.encode_batch([text], add_special_tokens=False))
        return list(encoding.ids), [end for _, end in encoding.offsets]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        hidden = self.special_ids if skip_special else frozenset()
        text = b"".join(self.token_bytes(i) for i in ids if i not in hidden).decode("utf-8", "replace")
        return text[1:] if self.strips_leading_blank and text.startswith(" ") else text

    def has_text(self, ids: Iterable[int]) -> bool:
        """Some id stands for text; a blank that ``decode`` takes away counts."""
        special_ids = self.special_ids
        for token_id in ids:  # noqa: SIM110 - mostly the first one does, and a generator takes longer than all of this
            if token_id not in special_ids and self.token_bytes(token_id):
                return True
        return False

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id without a token (padding of the vocabulary)."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def whole_text(self, token_id: int) -> str:
        """Text of a token whose bytes are whole characters, where it comes after whole ones; empty for any other."""
        if (text := self._whole_texts.get(token_id)) is None:
            raw = self.token_bytes(token_id)
            text, num_used = codecs.utf_8_decode(raw, "replace", False)
            text = text if num_used == len(raw) else ""
            if raw:  # so that ids without a token do not fill it
                self._whole_texts[token_id] = text
        return text

    def token_text(self, token_id: int, mark: str = "bytes:") -> str:
        r"""Name of one token for logprobs: its text, or ``mark`` and ``\x..`` where it is part of a character."""
        raw = self.token_bytes(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return mark + "".join(f"\\x{byte:02x}" for byte in raw)

    def token_piece(self, token_id: int) -> str:
        """Spelling of one token in the vocabulary, as ``tokenizers`` has it; empty for an id without a token."""
        return self._aware.id_to_token(token_id) or ""

    def min_num_tokens(self, text: str) -> int:
        """A bound from below on the length of ``encode(text)``, without encoding: refuses huge texts at once."""
        return -(-len(text) // self._max_token_bytes)


def _encoding(encodings: list[tokenizers.Encoding]) -> tokenizers.Encoding:
    # The library's call for one text keeps the interpreter's lock: a long one would stop every thread of the process,
    # whatever thread it is encoded in. The calls for batches give it up; the fast one counts no offsets.
    [encoding] = encodings
    if len(encoding) > MAX_COUNTED_TOKENS:  # a list of millions of ids holds the lock for a tenth of a second
        raise ContextLengthExceeded(f"a text has {len(encoding)} tokens, the limit is {MAX_COUNTED_TOKENS}")
    return encoding


def _build(definition: str, *, knows_special: bool) -> tokenizers.Tokenizer:
    try:
        encoder = tokenizers.Tokenizer.from_str(definition)
    except BaseException as error:  # the binding raises plain Exception for a malformed definition, or it panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InvalidCheckpoint(f"tokenizer.json cannot be read: {str(error)[:300]}") from error
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = not knows_special
    return encoder
