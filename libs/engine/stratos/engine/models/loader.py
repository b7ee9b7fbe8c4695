"""Reads the weights of a checkpoint from safetensors, layer by layer, and fuses what the decoder fuses.

Steps: list every tensor of every file -> compare names and shapes with what the configuration asks for ->
stream one layer at a time, converted to the compute type, q/k/v and gate/up concatenated.  Nothing is
unpickled; a tensor that the decoder would not use is refused, because the model would then run wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.model_files import ModelFiles, read_json
from stratos.engine.models.config import DecoderConfig

INDEX_NAME = "model.safetensors.index.json"
_FLOAT_TYPES = ("F32", "F16", "BF16")
_EMBED, _FINAL_NORM, _LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_ATTENTION, _MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Weight [out_features, in_features] and bias [out_features] of one (fused) linear layer."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer, q/k/v and gate/up fused along the output."""

    input_norm: Tensor
    post_attention_norm: Tensor
    qkv: LinearWeights
    output: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights


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
        self._handles: dict[str, Any] = {}
        for path in _weight_paths(files):
            handle = _open(path)
            for name in handle.keys():  # noqa: SIM118  (a safetensors handle is not a mapping)
                self._handles[name] = handle
        self._check(expected_shapes(config))

    def _check(self, expected: dict[str, tuple[int, ...]]) -> None:
        for name, shape in expected.items():
            if name not in self._handles:
                raise InvalidCheckpoint(f"the checkpoint lacks tensor {name}, which config.json asks for")
            found = self._handles[name].get_slice(name)
            if tuple(found.get_shape()) != shape:
                raise InvalidCheckpoint(
                    f"tensor {name} has shape {found.get_shape()}, config.json asks for {list(shape)}"
                )
            if found.get_dtype() not in _FLOAT_TYPES:
                raise InvalidCheckpoint(
                    f"tensor {name} has type {found.get_dtype()}; supported: {', '.join(_FLOAT_TYPES)}"
                )
        for name in sorted(self._handles.keys() - expected.keys()):
            is_copy = name == _LM_HEAD and self._config.tie_word_embeddings
            if not is_copy and not name.endswith("rotary_emb.inv_freq"):
                raise InvalidCheckpoint(f"the checkpoint holds tensor {name}, which config.json does not account for")

    def embedding(self) -> Tensor:
        """Token embedding [vocab, hidden]."""
        return self._read(_EMBED)

    def final_norm(self) -> Tensor:
        """Scale of the last RMS norm [hidden]."""
        return self._read(_FINAL_NORM)

    def lm_head(self) -> Tensor | None:
        """Output projection [vocab, hidden]; ``None`` when it is the embedding."""
        return None if self._config.tie_word_embeddings else self._read(_LM_HEAD)

    def layer(self, index: int) -> LayerWeights:
        """Read and fuse one layer."""
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            input_norm=self._read(f"{prefix}.input_layernorm.weight"),
            post_attention_norm=self._read(f"{prefix}.post_attention_layernorm.weight"),
            qkv=self._fused([f"{attention}.{p}_proj" for p in "qkv"], self._config.attention_bias),
            output=self._fused([f"{attention}.o_proj"], self._config.attention_bias),
            gate_up=self._fused([f"{mlp}.gate_proj", f"{mlp}.up_proj"], self._config.mlp_bias),
            down=self._fused([f"{mlp}.down_proj"], self._config.mlp_bias),
        )

    def _fused(self, modules: list[str], has_bias: bool) -> LinearWeights:
        weights = [self._read(f"{module}.weight") for module in modules]
        biases = [self._read(f"{module}.bias") for module in modules] if has_bias else []
        if len(modules) == 1:
            return LinearWeights(weights[0], biases[0] if biases else None)
        return LinearWeights(torch.cat(weights), torch.cat(biases) if biases else None)

    def _read(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor.to(device=self._device, dtype=self._dtype)


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration must hold."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {_EMBED: (config.vocab_size, hidden), _FINAL_NORM: (hidden,)}
    if not config.tie_word_embeddings:
        shapes[_LM_HEAD] = (config.vocab_size, hidden)
    projections = config.projection_shapes()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for block, names, has_bias in (
            ("self_attn", _ATTENTION, config.attention_bias),
            ("mlp", _MLP, config.mlp_bias),
        ):
            for name in names:
                shapes[f"{prefix}.{block}.{name}.weight"] = projections[name]
                if has_bias:
                    shapes[f"{prefix}.{block}.{name}.bias"] = projections[name][:1]
    return shapes


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
