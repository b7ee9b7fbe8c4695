"""Small real adapter folders, and the many ways to break one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_DIGEST = "ab" * 32
_PREFIX = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def tensors(rank: int = 2, hidden: int = 8) -> dict[str, tuple[int, int]]:
    """Names and shapes of a one-layer adapter."""
    return {f"{_PREFIX}A.weight": (rank, hidden), f"{_PREFIX}B.weight": (hidden, rank)}


def safetensors_bytes(shapes: dict[str, tuple[int, int]], fill: int = 1, **header_changes: Any) -> bytes:
    """A well-formed F32 file; ``header_changes`` replace entries of single tensors' headers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (rows, columns) in shapes.items():
        end = position + rows * columns * 4
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [position, end]}
        position = end
    for change in header_changes.values():
        header = change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes([fill]) * position


def write_adapter(folder: Path, *, rank: int = 2, alpha: float = 4, fill: int = 1, hidden: int = 8) -> Path:
    """A valid adapter; another ``fill`` gives other content."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["q_proj"], "bias": "none"}
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / WEIGHTS).write_bytes(safetensors_bytes(tensors(rank, hidden), fill))
    return folder


def _weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / WEIGHTS
        path.write_bytes(change(path.read_bytes()))

    return apply


def _header(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    return _weights(lambda _: safetensors_bytes(tensors(), change=change))


def _config(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


def _only(half: str) -> Callable[[Path], None]:
    kept = {name: shape for name, shape in tensors().items() if f"lora_{half}" in name}
    return _weights(lambda _: safetensors_bytes(kept))


def _overlap(header: dict[str, Any]) -> dict[str, Any]:
    begin, end = header[f"{_PREFIX}A.weight"]["data_offsets"]
    header[f"{_PREFIX}B.weight"]["data_offsets"] = [begin, end]
    return header


def _negative(header: dict[str, Any]) -> dict[str, Any]:
    header[f"{_PREFIX}A.weight"]["shape"] = [-2, -8]
    return header


def _dtype(header: dict[str, Any]) -> dict[str, Any]:
    header[f"{_PREFIX}A.weight"]["dtype"] = "I8"
    return header


def _foreign(header: dict[str, Any]) -> dict[str, Any]:
    header["lm_head.weight"] = header.pop(f"{_PREFIX}A.weight")
    return header


def _pickle_instead(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04\x95\x1a\x00\x00\x00")


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


BREAKAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_weights(lambda b: b[:-10]), "truncated"),
    "trailing bytes": (_weights(lambda b: b + b"x"), "trailing bytes"),
    "empty file": (_weights(lambda _: b""), "not a safetensors file"),
    "a pickle under the right name": (_weights(lambda _: b"\x80\x04\x95" + b"\x00" * 100), "not a safetensors file"),
    "a pickle": (_pickle_instead, "adapter_model.bin is a pickle and is never read: convert it"),
    "huge header length": (_weights(lambda b: struct.pack("<Q", 1 << 60) + b[8:]), "impossible header length"),
    "header not JSON": (_weights(lambda b: b[:8] + b"[" * (len(b) - 8)), "not a safetensors file"),
    "header deep": (_weights(lambda _: struct.pack("<Q", 200_000) + b"[" * 200_000), "not JSON"),
    "overlapping offsets": (_header(_overlap), "overlap"),
    "negative shape": (_header(_negative), "malformed or unsupported entry"),
    "unsupported dtype": (_header(_dtype), "malformed or unsupported entry"),
    "not a LoRA tensor": (_header(_foreign), "unsupported tensor 'lm_head.weight'"),
    "missing B": (_only("A"), "only one of A and B"),
    "missing A": (_only("B"), "only one of A and B"),
    "no tensors": (_weights(lambda _: safetensors_bytes({})), "holds no LoRA tensors"),
    "wrong rank": (_config(r=4), "does not have rank 4"),
    "rank zero": (_config(r=0), "r must be an integer"),
    "rank as text": (_config(r="2"), "r must be an integer"),
    "alpha not a number": (_config(lora_alpha="x"), "lora_alpha must be a positive number"),
    "dora": (_config(use_dora=True), "only plain LoRA"),
    "not LoRA": (_config(peft_type="IA3"), "only plain LoRA"),
    "config not JSON": (lambda f: (f / CONFIG).write_text("{r: 8}") and None, "cannot be read as JSON"),
    "config not an object": (lambda f: (f / CONFIG).write_text("[1]") and None, "must hold a JSON object"),
    "config not text": (lambda f: (f / CONFIG).write_bytes(b"\xff\xfe\x00") and None, "cannot be read as JSON"),
    "config deep": (lambda f: (f / CONFIG).write_text("[" * 200_000) and None, "cannot be read as JSON"),
    "config huge": (lambda f: (f / CONFIG).write_bytes(b" " * (2 << 20)) and None, "is larger than 1048576 bytes"),
    "no config": (_remove(CONFIG), "has no adapter_config.json"),
    "no weights": (_remove(WEIGHTS), "has no adapter_model.safetensors"),
}
"""Name -> (how to break a valid folder, what the message must say)."""
