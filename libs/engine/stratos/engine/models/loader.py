"""Reads the weights of a checkpoint from safetensors, layer by layer, and fuses what the decoder fuses.

Steps: list every tensor of every file -> compare names and shapes with what the configuration asks for ->
stream one layer at a time, converted to the compute type, q/k/v and gate/up concatenated.  Nothing is
unpickled; a tensor that the decoder would not use is refused, because the model would then run wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.model_files import ModelFiles, read_json
from stratos.engine.models.config import DecoderConfig, MoeConfig
from stratos.engine.models.tensor_names import (
    BODY_PREFIX,
    EMBEDDING,
    FINAL_NORM,
    LM_HEAD,
    expected_shapes,
    expert_names,
    layer_prefix,
    projection_name,
    router_name,
    stacked_names,
)

INDEX_NAME = "model.safetensors.index.json"
_FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Weight [out_features, in_features] and bias [out_features] of one (fused) linear layer."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """A gated MLP, or one expert; gate and up fused along the output."""

    gate_up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """One decoder layer without its MLP or experts, q/k/v fused along the output."""

    input_norm: Tensor
    post_attention_norm: Tensor
    qkv: LinearWeights
    output: LinearWeights
    qk_norm: Tensor | None
    """Scale of the RMS norm of each head of q, then of k: [heads + kv_heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """Where a tensor lies: an open file, and its name in it."""

    handle: Any
    name: str

    def slice(self) -> Any:
        """Shape, type and rows, without reading the rest."""
        return self.handle.get_slice(self.name)


class CheckpointReader:
    """The tensors of one model folder, checked completely when constructed.

    Args:
        files: the model folder.
        config: parsed from its ``config.json``.
        dtype: type that tensors are converted to.
        device: where they are put.

    Raises:
        InvalidCheckpoint: a tensor is missing, superfluous, of wrong shape or type; or a file is broken.
    """

    def __init__(self, files: ModelFiles, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._handles: dict[str, _StoredTensor] = {}
        for path in _weight_paths(files):
            handle = _open(path)
            for name in handle.keys():  # noqa: SIM118  (a safetensors handle is not a mapping)
                self._handles[name] = _StoredTensor(handle, name)
        if EMBEDDING.removeprefix(BODY_PREFIX) in self._handles:
            self._handles = {_full_name(name): stored for name, stored in self._handles.items()}
        self._is_stacked = any(stacked_names(layer)[0] in self._handles for layer in range(config.num_layers))
        self._check(expected_shapes(config, is_stacked=self._is_stacked))

    def _check(self, expected: dict[str, tuple[int, ...]]) -> None:
        for name, shape in expected.items():
            if name not in self._handles:
                raise InvalidCheckpoint(f"the checkpoint lacks tensor {name}, which config.json asks for")
            found = self._handles[name].slice()
            if tuple(found.get_shape()) != shape:
                raise InvalidCheckpoint(
                    f"tensor {name} has shape {found.get_shape()}, config.json asks for {list(shape)}"
                )
            if found.get_dtype() not in _FLOAT_TYPES:
                raise InvalidCheckpoint(
                    f"tensor {name} has type {found.get_dtype()}; supported: {', '.join(_FLOAT_TYPES)}"
                )
        for name in sorted(self._handles.keys() - expected.keys()):
            is_unused = name == LM_HEAD and (self._config.tie_word_embeddings or not self._config.has_lm_head)
            if not is_unused and not name.endswith("rotary_emb.inv_freq"):
                raise InvalidCheckpoint(f"the checkpoint holds tensor {name}, which config.json does not account for")

    def embedding(self) -> Tensor:
        """Token embedding [vocab, hidden]."""
        return self._read(EMBEDDING)

    def final_norm(self) -> Tensor:
        """Scale of the last RMS norm [hidden]."""
        return self._read(FINAL_NORM)

    def lm_head(self) -> Tensor | None:
        """Output projection [vocab, hidden]; ``None`` when it is the embedding."""
        return None if self._config.tie_word_embeddings else self._read(LM_HEAD)

    def attention(self, layer: int) -> AttentionWeights:
        """Read and fuse the norms and the attention of one layer."""
        prefix = layer_prefix(layer)
        return AttentionWeights(
            input_norm=self._read(f"{prefix}.input_layernorm.weight"),
            post_attention_norm=self._read(f"{prefix}.post_attention_layernorm.weight"),
            qkv=self._fused(f"{prefix}.self_attn", ("q_proj", "k_proj", "v_proj")),
            output=self._fused(f"{prefix}.self_attn", ("o_proj",)),
            qk_norm=self._qk_norm(f"{prefix}.self_attn") if self._config.has_qk_norm else None,
        )

    def mlp(self, layer: int) -> MlpWeights:
        """Read and fuse the MLP of a layer that has no experts."""
        block = f"{layer_prefix(layer)}.mlp"
        return MlpWeights(self._fused(block, ("gate_proj", "up_proj")), self._fused(block, ("down_proj",)))

    def router(self, layer: int, moe: MoeConfig) -> Tensor:
        """The router [experts, hidden] of a mixture-of-experts layer."""
        return self._read(router_name(layer, moe, is_stacked=self._is_stacked))

    def experts(self, layer: int, moe: MoeConfig) -> Iterator[MlpWeights]:
        """Read the experts of a layer one by one, so that only one is held twice while it is packed."""
        for expert in range(moe.num_experts):
            if self._is_stacked:
                gate_up, down = (self._converted(self._handles[n].slice()[expert]) for n in stacked_names(layer))
            else:
                gate, up, down = (self._read(name) for name in expert_names(layer, expert, moe))
                gate_up = torch.cat((gate, up))
            yield MlpWeights(LinearWeights(gate_up, None), LinearWeights(down, None))

    def biases(self) -> dict[tuple[int, str], Tensor]:
        """(layer, projection) -> bias [out_features], of all projections that an adapter may name."""
        config = self._config
        return {
            (layer, name): self._read(projection_name(layer, name, "bias"))
            for layer in range(config.num_layers)
            for name in config.projection_shapes(layer)
            if config.has_bias(name)
        }

    def _fused(self, block: str, projections: tuple[str, ...]) -> LinearWeights:
        has_bias = self._config.has_bias(projections[0])
        weights = [self._read(f"{block}.{name}.weight") for name in projections]
        biases = [self._read(f"{block}.{name}.bias") for name in projections] if has_bias else []
        if len(projections) == 1:
            return LinearWeights(weights[0], biases[0] if biases else None)
        return LinearWeights(torch.cat(weights), torch.cat(biases) if biases else None)

    def _qk_norm(self, block: str) -> Tensor:
        query, key = self._read(f"{block}.q_norm.weight"), self._read(f"{block}.k_norm.weight")
        return torch.cat((query.expand(self._config.num_heads, -1), key.expand(self._config.num_kv_heads, -1)))

    def _read(self, name: str) -> Tensor:
        stored = self._handles[name]
        return self._converted(stored.handle.get_tensor(stored.name))

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)


def _full_name(name: str) -> str:
    return name if name == LM_HEAD else BODY_PREFIX + name


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
    known = {path.name: path for path in files.weight_paths}
    names = sorted({str(name) for name in weight_map.values()})
    if missing := [name for name in names if name not in known]:
        raise InvalidCheckpoint(f"{files.path} lacks {missing[0]}, which {INDEX_NAME} names")
    return [known[name] for name in names]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpoint(f"{path} is not a readable safetensors file: {error}") from error
