"""Tensors of a model whose weights lie in GGUF files, as the loader reads those of safetensors.

A tensor is widened a few rows at a time, so that no float32 copy of a large one is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.decoder_fields import ROPE_FACTORS
from stratos.core.files.gguf.header import GgufFile, GgufTensorInfo
from stratos.core.files.gguf.parts import SUFFIX, read_gguf
from stratos.core.files.model_files import ModelFiles
from stratos.engine.checkpoint.gguf.blocks import as_codes, as_floats
from stratos.engine.checkpoint.gguf.kept_codes import kept_schemes
from stratos.engine.checkpoint.gguf.names import full_name, paired_heads
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.weight_schemes import LinearScheme

CHUNK_ELEMENTS = 1 << 22
"""Widened at a time: 16 MiB of float32."""
_SIGNED_SCALES = ("Q4_0", "Q6_K")
"""Types whose scales have the sign of their largest element."""
PAIRED_ARCHITECTURE = "llama"
"""Files of it have the rows of q and k in another order: (head, pair, 2), where we compute with (head, 2, pair)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor(StoredTensor):
    """A tensor of blocks; ``handle`` is the whole mapped file, uint8."""

    info: GgufTensorInfo
    scheme: LinearScheme | None = None
    """Scheme of the product with which it may stay codes."""
    num_paired_heads: int = 0
    """Heads whose rows are put into the order of the computation; 0: they are in it."""

    def whole(self) -> Tensor:
        """The tensor in float32, which is a copy."""
        return self.floats(torch.float32)

    def rows(self, index: int) -> Tensor:
        """``[index]`` of its first axis alone."""
        return self.whole()[index]

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The tensor in a type of floats.

        Raises:
            InvalidCheckpoint: an element is NaN or infinite, or would be in ``dtype``.
        """
        out = torch.empty(self.shape, dtype=dtype)
        rows, length = out.view(-1, self.shape[-1]), self.shape[-1]
        stored = self._bytes().view(rows.shape[0], -1)
        step = max(1, CHUNK_ELEMENTS // length)
        for begin in range(0, rows.shape[0], step):
            blocks = stored[begin : begin + step].reshape(-1, self.info.block_type.num_bytes)
            numbers = as_floats(self.dtype, blocks).view(-1, length)
            self._check(numbers, dtype)
            rows[begin : begin + step] = numbers
        return self._ordered(out)

    def codes(self) -> QuantisedWeight | NestedWeight:
        """The weight, its blocks as they are; ``scheme`` must not be ``None``.

        Raises:
            InvalidCheckpoint: a scale is no number, or negative where that cannot be.
        """
        weight = as_codes(self.dtype, self._bytes().view(self.shape[0], -1, self.info.block_type.num_bytes))
        scales = weight.wholes if isinstance(weight, NestedWeight) else weight.scales
        least = -torch.inf if self.dtype in _SIGNED_SCALES else 0.0
        if not bool((torch.isfinite(scales) & (scales >= least)).all()):
            raise InvalidCheckpoint(f"{self.file_name}: tensor {self.name} holds a scale that cannot be")
        if isinstance(weight, NestedWeight):
            return NestedWeight(
                scheme=weight.scheme,
                codes=self._ordered(weight.codes),
                parts=self._ordered(weight.parts),
                wholes=self._ordered(weight.wholes),
            )
        return QuantisedWeight(
            scheme=weight.scheme, codes=self._ordered(weight.codes), scales=self._ordered(weight.scales)
        )

    def _bytes(self) -> Tensor:
        mapped: Tensor = self.handle
        return mapped[self.info.begin : self.info.begin + self.info.num_bytes]

    def _check(self, numbers: Tensor, dtype: torch.dtype) -> None:
        extremes = torch.stack(torch.aminmax(numbers))
        if not bool(torch.isfinite(extremes).all()):
            raise InvalidCheckpoint(f"{self.file_name}: tensor {self.name} holds NaN or infinity")
        if not bool(torch.isfinite(extremes.to(dtype)).all()):
            raise InvalidCheckpoint(
                f"{self.file_name}: tensor {self.name} reaches {float(extremes.abs().max()):.3g}, which "
                f"{str(dtype).removeprefix('torch.')} cannot hold; set dtype to bfloat16 or float32"
            )

    def _ordered(self, tensor: Tensor) -> Tensor:
        if not self.num_paired_heads:
            return tensor
        pairs = tensor.reshape(self.num_paired_heads, -1, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).flatten(0, 2)


def has_gguf_weights(files: ModelFiles) -> bool:
    """Whether the weights of a folder lie in GGUF files."""
    return files.weight_paths[0].suffix == SUFFIX


def gguf_tensors(files: ModelFiles, config: DecoderConfig) -> dict[str, StoredTensor]:
    """Every tensor of a model folder, by the name that the loader expects.

    Raises:
        InvalidCheckpoint: a file is broken or missing, or the folder holds another one.
    """
    model = read_gguf(files.weight_paths[0])
    if strange := {path.name for path in files.weight_paths} - {file.path.name for file in model.files}:
        raise InvalidCheckpoint(f"{files.path} holds {min(strange)} beside the model of {files.weight_paths[0].name}")
    mapped = {file.path: _mapped(file) for file in model.files}
    kept = kept_schemes({name: info.block_type.name for name, info in model.tensors.items()})
    is_paired = model.architecture == PAIRED_ARCHITECTURE
    tensors: dict[str, StoredTensor] = {}
    for name, info in model.tensors.items():
        if name == ROPE_FACTORS:  # config.json has what they say
            continue
        ours = full_name(name)
        if ours in tensors:
            raise InvalidCheckpoint(f"tensors {tensors[ours].name} and {name} of a GGUF file are one: which is meant?")
        tensors[ours] = GgufTensor(
            handle=mapped[info.path],
            file_name=info.path.name,
            name=name,
            shape=info.shape,
            dtype=info.block_type.name,
            info=info,
            scheme=kept.get(name),
            num_paired_heads=paired_heads(ours, config.num_heads, config.num_kv_heads) if is_paired else 0,
        )
    return tensors


def _mapped(file: GgufFile) -> Tensor:
    try:
        return torch.from_file(str(file.path), shared=False, size=file.size, dtype=torch.uint8)
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InvalidCheckpoint(f"{file.path.name} cannot be mapped into memory: {reason}") from error
