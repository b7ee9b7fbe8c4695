"""Bytes of every token of a vocabulary, so that text can be put together without asking the tokenizer.

Two kinds of vocabulary are known, told apart by the ``decoder`` entry of ``tokenizer.json``:

``ByteLevel``      each character of a token's name stands for one byte (GPT-2's table).
``ByteFallback``   names are text with ``▁`` for a blank; ``<0x0A>`` is one byte (SentencePiece).

Anything else is refused at load; a wrong guess would show as wrong text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stratos.common.errors import InvalidCheckpoint

_BYTE_NAME = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_BLANK = "\u2581"
MAX_VOCAB_SIZE = 2**22
"""The largest vocabularies of published models have a sixteenth of it."""


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: the printable character that stands for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


def _decoder_types(decoder: Mapping[str, Any] | None) -> list[str]:
    if decoder is None:
        return []
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    return [str(part.get("type")) for part in parts]


def token_bytes_table(tokenizer_json: Mapping[str, Any]) -> list[bytes]:
    """Token id -> bytes; ids that no token has are empty.

    Raises:
        InvalidCheckpoint: the decoder is of a kind that is not known, or an id is absurd.
    """
    types = _decoder_types(tokenizer_json.get("decoder"))
    names: dict[int, str] = {index: name for name, index in tokenizer_json["model"]["vocab"].items()}
    added = {token["id"]: token["content"] for token in tokenizer_json.get("added_tokens", ())}
    names.update(added)
    most = max(names, default=-1)
    if most >= MAX_VOCAB_SIZE:
        raise InvalidCheckpoint(f"tokenizer.json gives a token the id {most}; they must be below {MAX_VOCAB_SIZE}")
    table = [b""] * (most + 1)
    if "ByteLevel" in types:
        alphabet = byte_level_alphabet()
        for index, name in names.items():
            known = all(character in alphabet for character in name)
            table[index] = bytes(alphabet[character] for character in name) if known else name.encode()
    elif "ByteFallback" in types:
        for index, name in names.items():
            byte = _BYTE_NAME.match(name)
            table[index] = bytes([int(byte[1], 16)]) if byte else name.replace(_BLANK, " ").encode()
    else:
        raise InvalidCheckpoint(
            f"tokenizer.json has the decoder {'+'.join(types) or 'none'}; ByteLevel and ByteFallback are supported"
        )
    return table


def strips_leading_blank(tokenizer_json: Mapping[str, Any]) -> bool:
    """The decoder takes one blank away from the beginning of a text (SentencePiece)."""
    return "Strip" in _decoder_types(tokenizer_json.get("decoder"))
