"""Where the tensors of a checkpoint lie: one safetensors file, or the shards that an index names.

Headers are read and checked without reading a tensor; nothing is unpickled, and no path leaves the model's folder.
What the tensors mean, and whether they are the right ones, is the matter of ``loader``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import ModelFiles, read_json
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.fields import shown

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of an open file."""

    handle: Any
    file_name: str
    name: str
    """In the file."""
    shape: tuple[int, ...]
    dtype: str
    """Name of the type in safetensors, e.g. "BF16"."""

    def whole(self) -> Tensor:
        """The tensor, which lies in the mapped file."""
        tensor: Tensor = self.handle.get_tensor(self.name)
        return tensor

    def rows(self, index: int) -> Tensor:
        """``[index]`` of its first axis alone."""
        tensor: Tensor = self.handle.get_slice(self.name)[index]
        return tensor


def stored_tensors(files: ModelFiles) -> dict[str, StoredTensor]:
    """Every tensor of a model folder by name.

    Raises:
        InvalidCheckpoint: a file is broken or missing, or a tensor is there twice.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _weight_paths(files):
        header, handle = read_safetensors_header(path, InvalidCheckpoint, ALL_BYTES), _open(path)
        for name, entry in header.items():
            if name in tensors:
                raise InvalidCheckpoint(
                    f"tensor {shown(name)} is in both {tensors[name].file_name} and {path.name}: which one is meant?"
                )
            tensors[name] = StoredTensor(
                handle=handle, file_name=path.name, name=name, shape=tuple(entry["shape"]), dtype=entry["dtype"]
            )
    return tensors


def _weight_paths(files: ModelFiles) -> list[Path]:
    """The files to read: the shards that the index names, else the single file."""
    index = files.path / INDEX_NAME
    if not index.exists():
        if len(files.weight_paths) > 1:
            raise InvalidCheckpoint(f"{files.path} holds several weight files but no {INDEX_NAME}")
        return list(files.weight_paths)
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidCheckpoint(f"{index} has no weight_map")
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise InvalidCheckpoint(f"{index}: {shown(name)}, for tensor {shown(tensor)}, is not the name of a file")
    known = {path.name: path for path in files.weight_paths}
    names = sorted(set(weight_map.values()))
    if missing := [name for name in names if name not in known]:
        raise InvalidCheckpoint(f"{files.path} lacks {shown(missing[0])}, which {INDEX_NAME} names")
    return [known[name] for name in names]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path.name} is not a readable safetensors file: {error}") from error


def check_numbers(stored: StoredTensor, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise ``InvalidCheckpoint`` if a tensor has NaN or infinity, or would have in ``dtype``."""
    extremes, name = torch.stack(torch.aminmax(tensor)), stored.name
    if not bool(torch.isfinite(extremes).all()):  # far cheaper than isfinite(tensor)
        raise InvalidCheckpoint(f"{stored.file_name}: tensor {name} holds NaN or infinity")
    if not bool(torch.isfinite(extremes.to(dtype)).all()):
        raise InvalidCheckpoint(
            f"{stored.file_name}: tensor {name} reaches {float(extremes.abs().max()):.3g}, which "
            f"{str(dtype).removeprefix('torch.')} cannot hold; set dtype to bfloat16 or float32"
        )
