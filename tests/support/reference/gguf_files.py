"""Writes GGUF files by their published layout: metadata of every type, tensors, splits."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import BASE_MODEL

TYPES = {
    **{"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20)},
    **{"Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)},
    **{"Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "Q2_K": (10, 256, 84)},
}
"""Name -> number, elements and bytes of a block."""


@dataclass(frozen=True)
class Stored:
    """A tensor to write; shape as torch has it."""

    shape: tuple[int, ...]
    kind: str
    content: bytes


def zeros(*shape: int, kind: str = "F32") -> Stored:
    """A tensor of zero bytes."""
    count = 1
    for extent in shape:
        count *= extent
    _, elements, num_bytes = TYPES[kind]
    return Stored(shape, kind, bytes(count // elements * num_bytes))


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Stored], *, alignment: int = 32, version: int = 3
) -> bytes:
    """The content of a file."""
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    infos, data = b"", b""
    for name, tensor in tensors.items():
        extents = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        infos += text(name) + extents + struct.pack("<IQ", TYPES[tensor.kind][0], len(data))
        data += padded(tensor.content, alignment)
    return padded(head + infos, alignment) + data


def padded(content: bytes, alignment: int) -> bytes:
    return content + bytes(-len(content) % alignment)


def text(content: str) -> bytes:
    encoded = content.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(item: Any) -> bytes:
    """A typed value: integers are u32 or i32, those of a list i32 as llama.cpp wants them, numbers float32."""
    if isinstance(item, list):
        packed = [_scalar(entry) for entry in item]
        number = packed[0][0] if item else 8
        number = 5 if number == 4 else number
        return struct.pack("<IIQ", 9, number, len(item)) + b"".join(content for _, content in packed)
    number, content = _scalar(item)
    return struct.pack("<I", number) + content


def _scalar(item: Any) -> tuple[int, bytes]:
    if isinstance(item, bool):
        return 7, struct.pack("<?", item)
    if isinstance(item, int):
        return (4, struct.pack("<I", item)) if item >= 0 else (5, struct.pack("<i", item))
    if isinstance(item, float):
        return 6, struct.pack("<f", item)
    return 8, text(item)


BYTE_LEVEL = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))]
"""GPT-2's characters for the 256 bytes."""
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def byte_pair_vocabulary(pre: str = "qwen2") -> dict[str, Any]:
    """A vocabulary of GPT-2's kind: bytes, three merges, control tokens behind them."""
    merged = ["Ġt", "he", "Ġthe"]
    tokens = [*BYTE_LEVEL, *merged, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "[PAD263]"]
    kinds = [1] * (256 + len(merged)) + [3, 3, 3, 4, 5]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
        "tokenizer.ggml.bos_token_id": 259,
        "tokenizer.ggml.eos_token_id": 261,
        "tokenizer.chat_template": TEMPLATE,
    }


def sentence_piece_vocabulary() -> dict[str, Any]:
    """A vocabulary of SentencePiece's kind: control tokens, bytes, characters and pieces with scores."""
    special = ["<unk>", "<s>", "</s>"]
    pieces = {"▁": -30.0, "t": -31.0, "h": -32.0, "e": -33.0, "▁t": -1.0, "he": -2.0, "▁the": -3.0, "a": -34.0}
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def shipped_vocabulary(size: int = 0) -> dict[str, Any]:
    """The vocabulary of the shipped tokenizer, as a converter writes it; ``size`` adds tokens of some text."""
    shipped = json.loads((BASE_MODEL / "tokenizer.json").read_text())
    special = {token["id"] for token in shipped["added_tokens"]}
    vocab = sorted(shipped["model"]["vocab"], key=shipped["model"]["vocab"].__getitem__)
    more = [f"[{index}]" for index in range(len(vocab), size)]
    kinds = [3 if index in special else 1 for index in range(len(vocab))] + [1] * len(more)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab + more,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in shipped["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.chat_template": (BASE_MODEL / "chat_template.jinja").read_text(),
    }


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}
"""Metadata of a model of one layer."""


def llama_tensors(vocab_size: int, kind: str = "Q8_0") -> dict[str, Stored]:
    """Its tensors, all zeros, weights of linear layers in one type."""
    layer = {
        "attn_norm": zeros(64),
        "ffn_norm": zeros(64),
        "attn_q": zeros(64, 64, kind=kind),
        "attn_k": zeros(32, 64, kind=kind),
        "attn_v": zeros(32, 64, kind=kind),
        "attn_output": zeros(64, 64, kind=kind),
        "ffn_gate": zeros(96, 64, kind=kind),
        "ffn_up": zeros(96, 64, kind=kind),
        "ffn_down": zeros(64, 96, kind=kind),
    }
    named = {f"blk.0.{name}.weight": tensor for name, tensor in layer.items()}
    return {"token_embd.weight": zeros(vocab_size, 64, kind="F16"), "output_norm.weight": zeros(64), **named}


def tiny_llama(vocabulary: dict[str, Any] | None = None, kind: str = "Q8_0") -> bytes:
    """A whole small file."""
    words = byte_pair_vocabulary() if vocabulary is None else vocabulary
    return gguf_bytes({**LLAMA, **words}, llama_tensors(len(words["tokenizer.ggml.tokens"]), kind))


def write(path: Path, content: bytes) -> Path:
    """Write and return the path."""
    path.write_bytes(content)
    return path
