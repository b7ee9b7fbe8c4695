"""A model in one GGUF file, or split into several that are named NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.header import GgufFile, GgufTensorInfo, read_gguf_header
from stratos.core.files.gguf.metadata import GgufMetadata

SUFFIX = ".gguf"
MAX_PARTS = 1024
ARCHITECTURE_KEY = "general.architecture"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """All parts of one model."""

    files: tuple[GgufFile, ...]
    metadata: GgufMetadata
    """That of the first part; the others say nothing of the model."""
    tensors: dict[str, GgufTensorInfo]

    @property
    def architecture(self) -> str:
        """Begins the keys that describe the model."""
        return self.metadata.text(ARCHITECTURE_KEY)

    @property
    def block_names(self) -> tuple[str, ...]:
        """Types of blocks that its tensors have."""
        return tuple(sorted({info.block_type.name for info in self.tensors.values()}))


def is_gguf(path: Path) -> bool:
    """Whether a model is given as a GGUF file."""
    return path.suffix == SUFFIX and not path.is_dir()


def model_stem(path: Path) -> str:
    """Name of the model: that of its file, without what numbers the part."""
    found = _PART.fullmatch(path.name)
    return found["stem"] if found else path.name.removesuffix(SUFFIX)


def read_gguf(path: Path) -> GgufModel:
    """Read the headers of a model.

    Args:
        path: its file, or the first of its parts.

    Raises:
        InvalidCheckpoint: a file is broken or missing, is no first part, or a tensor is there twice.
    """
    first = read_gguf_header(path)
    count = first.metadata.count("split.count", 1, least=0) or 1
    files = (first, *(read_gguf_header(part) for part in _other_parts(first, count)))
    tensors: dict[str, GgufTensorInfo] = {}
    for number, file in enumerate(files):
        _check_part(file, number, count)
        for name, info in file.tensors.items():
            if name in tensors:
                other = tensors[name].path.name
                raise InvalidCheckpoint(f"tensor {name} is in both {other} and {file.path.name}: which one is meant?")
            tensors[name] = info
    stated = first.metadata.count("split.tensors.count", len(tensors), least=0)
    if stated != len(tensors) or not tensors:
        raise InvalidCheckpoint(f"{path.name}: {stated} tensors are announced, {len(tensors)} are there")
    return GgufModel(files=files, metadata=first.metadata, tensors=tensors)


def _other_parts(first: GgufFile, count: int) -> list[Path]:
    if count == 1:
        return []
    if count > MAX_PARTS:
        raise InvalidCheckpoint(f"{first.path.name}: a model of {count} parts; at most {MAX_PARTS} are read")
    found = _PART.fullmatch(first.path.name)
    if found is None or (int(found["number"]), int(found["count"])) != (1, count):
        raise InvalidCheckpoint(
            f"{first.path.name} is a part of a model of {count}: give the first one, NAME-00001-of-{count:05d}.gguf"
        )
    return [first.path.with_name(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(2, count + 1)]


def _check_part(file: GgufFile, number: int, count: int) -> None:
    stated = file.metadata.count("split.no", 0, least=0), file.metadata.count("split.count", 1, least=0) or 1
    if stated != (number, count):
        raise InvalidCheckpoint(
            f"{file.path.name} says that it is part {stated[0] + 1} of {stated[1]}, and not {number + 1} of {count}"
        )
