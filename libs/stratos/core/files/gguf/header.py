"""Reads the header of one GGUF file and compares everything that a reader would otherwise trust.

    "GGUF" | version | number of tensors | number of keys | keys and values | tensors: name, extents, type, offset
    padding to the alignment | the tensors in this order, each padded to the alignment

Versions 2 and 3, little-endian.  The first extent of a tensor is the length of its rows; shapes here have it last.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.block_types import BLOCK_TYPES, REFUSED_TYPES, BlockType
from stratos.core.files.gguf.header_bytes import HeaderBytes
from stratos.core.files.gguf.metadata import GgufMetadata, read_metadata

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_ALIGNMENT = "general.alignment", 32, 65536
MAX_TENSORS, MAX_EXTENTS, MAX_NAME_CHARS = 65536, 4, 255
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensorInfo:
    """One tensor, as the header describes it."""

    name: str
    path: Path
    shape: tuple[int, ...]
    """Row length last."""
    block_type: BlockType
    begin: int
    """First byte in the file."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements // self.block_type.elements * self.block_type.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """One file: what its header says."""

    path: Path
    size: int
    metadata: GgufMetadata
    tensors: dict[str, GgufTensorInfo]


def read_gguf_header(path: Path) -> GgufFile:
    """Read and check the header of a file.

    Raises:
        InvalidCheckpoint: anything that is not exactly a GGUF file whose tensors can be read.
    """
    if not path.is_file():  # a pipe would be waited for, for ever
        raise InvalidCheckpoint(f"{path} is not a file")
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            size = path.stat().st_size
            header = HeaderBytes(file, path.name, size)
            num_tensors, num_keys = _counts(header)
            metadata = read_metadata(header, num_keys)
            entries = [_entry(header) for _ in range(num_tensors)]
    except OSError as error:
        raise InvalidCheckpoint(f"{path.name} cannot be read: {error.strerror}") from error
    return GgufFile(path=path, size=size, metadata=metadata, tensors=_placed(path, size, header, metadata, entries))


def _counts(header: HeaderBytes) -> tuple[int, int]:
    """Numbers of tensors and keys."""
    if header.left < 4 or header.take(4) != MAGIC:
        raise InvalidCheckpoint(f"{header.name} is not a GGUF file: it does not begin with GGUF")
    version = header.u32()
    if version not in VERSIONS:
        why = " (it is big-endian)" if version and not version & 0xFFFF else ""
        raise InvalidCheckpoint(f"{header.name}: GGUF version {version} is not supported{why}; supported: 2, 3")
    num_tensors, num_keys = header.u64(), header.u64()
    if num_tensors > MAX_TENSORS:
        raise InvalidCheckpoint(f"{header.name}: its header counts {num_tensors} tensors; at most {MAX_TENSORS}")
    return num_tensors, num_keys


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    offset: int


def _entry(header: HeaderBytes) -> _TensorEntry:
    name = header.text("the name of a tensor")
    shown = f"{header.name}: tensor {reprlib.repr(name)}"
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidCheckpoint(f"{shown} has a name of {len(name)} characters; supported: 1 to {MAX_NAME_CHARS}")
    num_extents = header.u32()
    if not 1 <= num_extents <= MAX_EXTENTS:
        raise InvalidCheckpoint(f"{shown} has {num_extents} extents; supported: 1 to {MAX_EXTENTS}")
    shape = tuple(header.u64() for _ in range(num_extents))[::-1]
    type_id = header.u32()
    if type_id not in BLOCK_TYPES:
        known = ", ".join(block.name for block in BLOCK_TYPES.values())
        found = REFUSED_TYPES.get(type_id, f"number {type_id}")
        raise InvalidCheckpoint(f"{shown} has blocks of type {found}; supported: {known}")
    block = BLOCK_TYPES[type_id]
    if not all(shape) or shape[-1] % block.elements:
        raise InvalidCheckpoint(f"{shown} has the shape {list(shape)}, which blocks of {block.name} do not fill")
    return _TensorEntry(name, shape, block, header.u64())


def _placed(
    path: Path, size: int, header: HeaderBytes, metadata: GgufMetadata, entries: list[_TensorEntry]
) -> dict[str, GgufTensorInfo]:
    """Tensors by name; each begins where the one before it ends, so none overlaps another or leaves the file."""
    alignment = metadata.count(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if alignment & (alignment - 1) or not 8 <= alignment <= MAX_ALIGNMENT:
        raise InvalidCheckpoint(
            f"{path.name}: {ALIGNMENT_KEY} {alignment} is no power of two from 8 to {MAX_ALIGNMENT}"
        )
    data = _padded(header.position, alignment)
    tensors: dict[str, GgufTensorInfo] = {}
    expected = end = 0
    for entry in entries:
        shown = f"{path.name}: tensor {reprlib.repr(entry.name)}"
        if entry.name in tensors:
            raise InvalidCheckpoint(f"{shown} appears twice: which one is meant?")
        if entry.offset != expected:
            raise InvalidCheckpoint(
                f"{shown} begins at {entry.offset} and not at {expected}: tensors overlap or leave a hole"
            )
        info = GgufTensorInfo(
            name=entry.name,
            path=path,
            shape=entry.shape,
            block_type=entry.block_type,
            begin=data + entry.offset,
        )
        end = info.begin + info.num_bytes
        if end > size:
            raise InvalidCheckpoint(f"{shown} ends at byte {end} of a file of {size} bytes: the file is truncated")
        expected = _padded(entry.offset + info.num_bytes, alignment)
        tensors[entry.name] = info
    if entries and size > data + expected:
        raise InvalidCheckpoint(f"{path.name} has {size - data - expected} bytes after its last tensor")
    return tensors


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
