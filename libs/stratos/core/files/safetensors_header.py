"""Reads and checks the header of a safetensors file, without torch and without reading a tensor.

    8 bytes: length of the header, little endian | the header, JSON | the tensors, one after the other

Everything that a reader would otherwise trust is compared: types, shapes, offsets, and the size of the file.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from stratos.common.errors import InvalidAdapter, InvalidCheckpoint

MAX_HEADER_BYTES = 16 * 1024 * 1024
FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
"""Types of tensors that are computed with, and bytes of an element."""
ALL_BYTES = {
    **FLOAT_BYTES,
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4},
    **{"U64": 8, "I64": 8},
}
Refusal = type[InvalidAdapter] | type[InvalidCheckpoint]


def read_safetensors_header(
    path: Path, refusal: Refusal, element_bytes: dict[str, int] = FLOAT_BYTES
) -> dict[str, dict[str, Any]]:
    """Read and check the header of a safetensors file: dtypes, shapes, offsets, file size.

    Args:
        path: the file.
        refusal: class of the error.
        element_bytes: types that are let through, and bytes of an element.

    Returns:
        Tensor name -> its entry, with "dtype", "shape" and "data_offsets".

    Raises:
        InvalidAdapter, InvalidCheckpoint: anything that is not exactly a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (size,)
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise refusal(f"{path.name} is not a safetensors file: impossible header length")
            header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
    except FileNotFoundError as error:
        raise refusal(f"{path.parent} has no {path.name}") from error
    except (ValueError, RecursionError) as error:
        raise refusal(f"{path.name} is not a safetensors file: its header is not JSON") from error
    except OSError as error:
        raise refusal(f"{path.name} cannot be read: {error.strerror}") from error
    if not isinstance(header, dict):
        raise refusal(f"{path.name} is not a safetensors file: its header is not an object")
    header.pop("__metadata__", None)
    _check_offsets(path.name, header, size - 8 - length, refusal, element_bytes)
    return header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which no name appears twice: readers differ in which one they take."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name appears twice")
    return content


def _check_offsets(
    name: str, header: dict[str, Any], data_bytes: int, refusal: Refusal, element_bytes: dict[str, int]
) -> None:
    ranges = []
    for tensor, info in header.items():
        try:
            begin, end = info["data_offsets"]
            elements = 1
            for extent in info["shape"]:
                if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
                    raise ValueError
                elements *= extent
            expected = elements * element_bytes[info["dtype"]]
        except (KeyError, TypeError, ValueError) as error:
            raise refusal(f"{name}: tensor {tensor[:100]!r} has a malformed or unsupported entry") from error
        if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end and end - begin == expected):
            raise refusal(f"{name}: tensor {tensor[:100]!r} has offsets that do not fit its shape")
        ranges.append((begin, end))
    position = 0
    for begin, end in sorted(ranges):
        if begin != position:
            raise refusal(f"{name}: tensors overlap or leave a hole")
        position = end
    if position != data_bytes:
        raise refusal(f"{name} is truncated or has trailing bytes")
