"""A small tokenizer of the SentencePiece kind: a mark for blanks, byte fallback, one blank stripped from a text."""

from __future__ import annotations

import json
from typing import Any

from stratos.text.tokenizer import Tokenizer

SPECIAL = ("<unk>", "<s>", "</s>")
MERGES = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he"), ("a", "b"), ("\u2581", "\u2581"), ("\n", "\n"), ("é", "ß")]


def definition() -> dict[str, Any]:
    """Content of its tokenizer.json."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdehnrst<>|\n\u00e9\u00df"]
    names += [left + right for left, right in MERGES]
    vocab = {name: index for index, name in enumerate(names)}
    added: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    normalizers = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, "special": True, **added} for i, name in enumerate(SPECIAL)],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [list(pair) for pair in MERGES],
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": "<unk>",
        },
    }


def byte_fallback_tokenizer() -> Tokenizer:
    """The tokenizer."""
    return Tokenizer(json.dumps(definition()))
