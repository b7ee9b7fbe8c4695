"""A LoRA adapter folder (PEFT layout), checked without torch: header, rank, targets, shapes, digest.

Registry and workers both call ``read_adapter_files``; so a broken adapter is refused by the same rules at
registration and at load.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import InvalidAdapter, InvalidCheckpoint
from stratos.core.model_files import files_digest, read_json

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 256
MAX_HEADER_BYTES = 16 * 1024 * 1024
SUPPORTED_TARGETS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
_DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
_EXPERT_TENSOR = re.compile(r"\.(?:mlp\.experts|mlp\.gate|block_sparse_moe)\.")
_TENSOR_NAME = re.compile(
    r"^base_model\.model\.model\.layers\.(\d+)\."
    r"(?:self_attn\.(?=[qkvo]_)|mlp\.(?=gate_|up_|down_))(\w+_proj)\.lora_([AB])\.weight$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """What is known of an adapter folder; every tensor named in ``shapes`` is present and well formed."""

    path: Path
    digest: str
    rank: int
    alpha: float
    use_rslora: bool
    target_modules: tuple[str, ...]
    num_bytes: int
    shapes: dict[tuple[int, str, str], tuple[int, int]]
    """(layer, projection, "A" or "B") -> shape."""

    @property
    def scaling(self) -> float:
        """Factor on B @ A: alpha / r, or alpha / sqrt(r) when rank-stabilised."""
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)


def read_safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """Read and check the header of a safetensors file: dtypes, shapes, offsets, file size.

    Raises:
        InvalidAdapter: anything that is not exactly a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (size,)
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise InvalidAdapter(f"{path.name} is not a safetensors file: impossible header length")
            header = json.loads(file.read(length))
    except FileNotFoundError as error:
        raise InvalidAdapter(f"the adapter folder has no {path.name}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidAdapter(f"{path.name} is not a safetensors file: its header is not JSON") from error
    except OSError as error:
        raise InvalidAdapter(f"{path.name} cannot be read: {error.strerror}") from error
    if not isinstance(header, dict):
        raise InvalidAdapter(f"{path.name} is not a safetensors file: its header is not an object")
    header.pop("__metadata__", None)
    _check_offsets(path.name, header, size - 8 - length)
    return header


def _check_offsets(name: str, header: dict[str, Any], data_bytes: int) -> None:
    ranges = []
    for tensor, info in header.items():
        try:
            begin, end = info["data_offsets"]
            elements = 1
            for extent in info["shape"]:
                if not isinstance(extent, int) or extent < 0:
                    raise ValueError
                elements *= extent
            expected = elements * _DTYPE_BYTES[info["dtype"]]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidAdapter(f"{name}: tensor {tensor[:100]!r} has a malformed or unsupported entry") from error
        if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end and end - begin == expected):
            raise InvalidAdapter(f"{name}: tensor {tensor[:100]!r} has offsets that do not fit its shape")
        ranges.append((begin, end))
    position = 0
    for begin, end in sorted(ranges):
        if begin != position:
            raise InvalidAdapter(f"{name}: tensors overlap or leave a hole")
        position = end
    if position != data_bytes:
        raise InvalidAdapter(f"{name} is truncated or has trailing bytes")


def read_adapter_files(path: Path) -> AdapterFiles:
    """Check an adapter folder completely and compute its digest.

    Raises:
        InvalidAdapter: says what is wrong with it.
    """
    try:
        config = read_json(path / CONFIG_NAME)
    except InvalidCheckpoint as error:
        raise InvalidAdapter(error.message) from error
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise InvalidAdapter(f"{CONFIG_NAME}: r must be an integer in [1, {MAX_RANK}]")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < 1e6:
        raise InvalidAdapter(f"{CONFIG_NAME}: lora_alpha must be a positive number")
    unsupported = [k for k in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern") if config.get(k)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or unsupported:
        raise InvalidAdapter(f"{CONFIG_NAME}: only plain LoRA without bias is supported ({', '.join(unsupported)})")
    header = read_safetensors_header(path / WEIGHTS_NAME)
    shapes = _tensor_shapes(header, rank)
    return AdapterFiles(
        path=path,
        digest=files_digest([(CONFIG_NAME, path / CONFIG_NAME), (WEIGHTS_NAME, path / WEIGHTS_NAME)]),
        rank=rank,
        alpha=float(alpha),
        use_rslora=bool(config.get("use_rslora", False)),
        target_modules=tuple(sorted({projection for _, projection, _ in shapes})),
        num_bytes=(path / WEIGHTS_NAME).stat().st_size,
        shapes=shapes,
    )


def _tensor_shapes(header: dict[str, dict[str, Any]], rank: int) -> dict[tuple[int, str, str], tuple[int, int]]:
    shapes: dict[tuple[int, str, str], tuple[int, int]] = {}
    for name, info in header.items():
        if _EXPERT_TENSOR.search(name):
            raise InvalidAdapter(
                f"{WEIGHTS_NAME}: {name[:100]!r} adapts a mixture of experts, which is not supported; "
                "train the adapter for q_proj, k_proj, v_proj and o_proj"
            )
        match = _TENSOR_NAME.match(name)
        shape = tuple(info["shape"])
        if not match or match[2] not in SUPPORTED_TARGETS or len(shape) != 2:
            raise InvalidAdapter(f"{WEIGHTS_NAME}: unsupported tensor {name[:100]!r}")
        if shape[0 if match[3] == "A" else 1] != rank:
            raise InvalidAdapter(f"{WEIGHTS_NAME}: tensor {name[:100]!r} does not have rank {rank}")
        shapes[int(match[1]), match[2], match[3]] = (shape[0], shape[1])
    if not shapes:
        raise InvalidAdapter(f"{WEIGHTS_NAME} holds no LoRA tensors")
    for layer, projection, _ in shapes:
        if (layer, projection, "A") not in shapes or (layer, projection, "B") not in shapes:
            raise InvalidAdapter(f"{WEIGHTS_NAME}: layer {layer} {projection} has only one of A and B")
    return shapes
