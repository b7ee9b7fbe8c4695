"""Reads the weights of a checkpoint, layer by layer, and fuses what the decoder fuses.

Steps: list every tensor of every file (``stored_tensors``, or ``gguf.tensors`` for GGUF files) -> compare names and
shapes with what the configuration asks for -> stream one layer at a time, checked for NaN and infinity, converted to
the compute type, q/k/v and gate/up concatenated.  A tensor that the decoder would not use is refused, because the
model would then run wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeGuard

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import ModelFiles
from stratos.engine.checkpoint.experts.interleaved import is_coded, read_interleaved
from stratos.engine.checkpoint.families.experts import MoeConfig
from stratos.engine.checkpoint.families.latent import UP, LatentConfig
from stratos.engine.checkpoint.fields import shown
from stratos.engine.checkpoint.formats.layer_tensors import LayerTensors
from stratos.engine.checkpoint.gguf.tensors import GgufTensor, gguf_tensors, has_gguf_weights
from stratos.engine.checkpoint.kv_scales import all_scale_names, read_kv_scales
from stratos.engine.checkpoint.layer_weights import (
    AnyWeight,
    AttentionWeights,
    DeltaParts,
    LatentParts,
    LinearWeights,
    MlpWeights,
    joined_weights,
    split_gate,
)
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.quantised_tensors import layer_tensors
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight, fused, has_order
from stratos.engine.checkpoint.rotated_rows import feature_order, row_order
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.checkpoint.stored_tensors import StoredTensor, check_numbers, stored_tensors
from stratos.engine.checkpoint.tensor_names import (
    CODED_SUFFIXES,
    DELTA_BLOCK,
    DELTA_PROJECTIONS,
    EMBEDDING,
    FINAL_NORM,
    LINEAR_SUFFIXES,
    LM_HEAD,
    delta_name,
    expected_shapes,
    expert_names,
    experts_prefix,
    full_names,
    is_unread,
    layer_prefix,
    norm_name,
    projection_name,
    router_bias_name,
    router_name,
    selection_bias_name,
    shared_gate_name,
    shared_prefix,
    sinks_name,
    stacked_names,
)
from stratos.engine.checkpoint.weight_schemes import HEAD_KIND, can_round, rounds_head

_FLOAT_TYPES = ("F32", "F16", "BF16")
_ROTATED_SUFFIXES = (".q_proj.weight", ".k_proj.weight", ".qkv_proj.weight")


class CheckpointReader:
    """The tensors of one model folder, checked completely when constructed.

    Args:
        files: the model folder.
        config: parsed from its ``config.json``.
        dtype: type that tensors are converted to.
        device: where they are put.
        rounding: what float weights of linear layers are quantised to while they are read; "auto" leaves them.
        keeps_codes: whether there are products for blocks of GGUF files and of experts; without them all are widened.
        take: gives memory of the model, uint8 of so many bytes, on a CPU.
        is_checked: these files were read before, and no tensor of them holds NaN or infinity.

    Raises:
        InvalidCheckpoint: a tensor is missing, superfluous, of wrong shape or type; or a file is broken.
    """

    def __init__(
        self,
        files: ModelFiles,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        rounding: str = "auto",
        *,
        keeps_codes: bool = True,
        take: Callable[[int], Tensor] | None = None,
        is_checked: bool = False,
    ) -> None:
        self._take, self._is_checked = take, is_checked
        self._config, self._dtype, self._device, self._rounding = config, dtype, device, rounding
        self._keeps_codes = keeps_codes
        self._quantised: dict[str, LayerTensors] = {}
        """By the name that the weight would have in floats."""
        self._feature_order = feature_order(config)
        is_gguf = has_gguf_weights(files)
        found: Mapping[str, StoredTensor] = gguf_tensors(files, config) if is_gguf else stored_tensors(files)
        self._tensors = {name: found[own] for name, own in full_names(found, is_text_part=config.is_text_part).items()}
        layers = range(config.num_layers)
        self._is_stacked = any(stacked_names(layer)[0] in self._tensors for layer in layers)
        self._is_coded = any(is_coded(self._tensors, experts_prefix(layer)) for layer in layers)
        self._check()

    def _check(self) -> None:
        used: set[str] = set()
        blocks = () if self._config.quantisation is None else self._config.quantisation.block_types
        known = tuple(dict.fromkeys((*_FLOAT_TYPES, *blocks)))
        for name, shape in expected_shapes(self._config, is_stacked=self._is_stacked, is_coded=self._is_coded):
            if (quantised := self._quantised_tensors(name, shape)) is not None:
                self._quantised[name] = quantised
                used |= quantised.names
                continue
            if name not in self._tensors:
                raise InvalidCheckpoint(f"the checkpoint lacks tensor {name}, which config.json asks for")
            stored = self._tensors[name]
            if stored.shape != shape:
                raise InvalidCheckpoint(
                    f"{stored.file_name}: tensor {name} has shape {list(stored.shape)}, "
                    f"config.json asks for {list(shape)}"
                )
            here = ("U8",) if self._is_coded and name.endswith(CODED_SUFFIXES) else known
            if stored.dtype not in here:
                raise InvalidCheckpoint(
                    f"{stored.file_name}: tensor {name} has type {stored.dtype}; supported: {', '.join(here)}"
                )
            used.add(name)
        for name in sorted(self._tensors.keys() - used):
            is_unused = name == LM_HEAD and (self._config.tie_word_embeddings or not self._config.has_lm_head)
            is_unused |= name in all_scale_names(self._config.num_layers)
            if not is_unused and not is_unread(name, self._config):
                raise InvalidCheckpoint(
                    f"{self._tensors[name].file_name}: the checkpoint holds tensor {shown(name)}, "
                    "which config.json does not account for"
                )

    def _quantised_tensors(self, name: str, shape: tuple[int, ...]) -> LayerTensors | None:
        """Tensors of a layer that the checkpoint stores as codes."""
        if self._config.quantisation is None or not name.endswith(LINEAR_SUFFIXES):
            return None
        layer = name.removesuffix(".weight")
        stored = self._config.quantisation.scheme_of(layer)
        return None if stored is None else layer_tensors(layer, (shape[0], shape[1]), stored, self._tensors)

    def embedding(self) -> Tensor:
        """Token embedding [vocab, hidden]."""
        if self._take is None or self._device.type != "cpu":
            return self._read(EMBEDDING)
        mapped = self._mapped(EMBEDDING)
        return self._take(mapped.nbytes).view(mapped.dtype).view(mapped.shape).copy_(mapped)

    def final_norm(self) -> Tensor:
        """Scale of the last RMS norm [hidden]."""
        return self._read(FINAL_NORM)

    def lm_head(self) -> AnyWeight | None:
        """Output projection [vocab, hidden]; ``None`` when it is the embedding as floats."""
        name = EMBEDDING if self._config.tie_word_embeddings else LM_HEAD
        stored = self._tensors[name]
        if self._stays_codes(stored):
            return stored.codes()
        if rounds_head(self._rounding) and can_round(stored.shape[1], HEAD_KIND):
            return rounded(self._read(name), HEAD_KIND)
        return None if self._config.tie_word_embeddings else self._read(name)

    def attention(self, layer: int) -> AttentionWeights:
        """Read and fuse the norms and the attention of one layer, or the projections that it has in place of that."""
        block, names = f"{layer_prefix(layer)}.self_attn", self._config.options.norms
        has_head_norm = self._config.options.qk_norm == "head" and not self._config.has_state(layer)
        qkv, output, gate = self._mixer(layer, block)
        return AttentionWeights(
            before_attention=self._norm(layer, names.before_attention),
            after_attention=self._norm(layer, names.after_attention),
            before_mlp=self._norm(layer, names.before_mlp),
            after_mlp=self._norm(layer, names.after_mlp),
            qkv=qkv,
            output=output,
            qk_norm=self._qk_norm(block) if has_head_norm else None,
            gate=gate,
        )

    def _mixer(self, layer: int, block: str) -> tuple[LinearWeights | LatentParts, LinearWeights, LinearWeights | None]:
        """Projections before attention or the delta rule, the one after it, and the gate of its result."""
        if self._config.has_state(layer):
            block = f"{layer_prefix(layer)}.{DELTA_BLOCK}"
            return self._fused(block, DELTA_PROJECTIONS), self._fused(block, ("out_proj",)), None
        if self._config.latent:
            return self._latent(block, self._config.latent), self._fused(block, ("o_proj",)), None
        qkv = self._fused(block, ("qkv_proj",) if self._config.is_qkv_fused else ("q_proj", "k_proj", "v_proj"))
        qkv, gate = split_gate(qkv, self._config.q_size) if self._config.has_output_gate else (qkv, None)
        return qkv, self._fused(block, ("o_proj",)), gate

    def _latent(self, block: str, latent: LatentConfig) -> LatentParts:
        has_rank, name = latent.query_rank > 0, f"{block}.{UP}.weight"
        stored = self._quantised.get(name)
        up = self._mapped(name) if stored is None else self._to_compute_type(stored.read().floats())
        return LatentParts(
            query_down=self._fused(block, ("q_a_proj",)) if has_rank else None,
            query_norm=self._read(f"{block}.q_a_layernorm.weight") if has_rank else None,
            query=self._fused(block, ("q_b_proj" if has_rank else "q_proj",)),
            down=self._fused(block, ("kv_a_proj_with_mqa",)),
            norm=self._read(f"{block}.kv_a_layernorm.weight"),
            up=up.view(latent.num_heads, -1, latent.rank),
        )

    def delta(self, layer: int) -> DeltaParts:
        """Tensors of the gated delta rule beside its projections, in float32."""
        parts: dict[str, Tensor] = {}
        for part in ("conv1d.weight", "A_log", "dt_bias", "norm.weight"):
            stored = parts[part] = self._tensors[delta_name(layer, part)].whole().float()
            check_numbers(self._tensors[delta_name(layer, part)], stored, self._dtype)
        conv, *others = (stored.to(self._device, copy=True) for stored in parts.values())
        return DeltaParts(conv.squeeze(1).t().contiguous(), *others)

    def whole_qk_norm(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Weights of the norms over all heads of q [q_size], and of k [kv_size], where the family has them."""
        if self._config.options.qk_norm != "whole":
            return None
        block = f"{layer_prefix(layer)}.self_attn"
        return self._read(f"{block}.q_norm.weight"), self._read(f"{block}.k_norm.weight")

    def sinks(self) -> Tensor | None:
        """Scores of the heads' sinks, float32 [layers, heads], where the family has them."""
        if not self._config.options.has_sinks:
            return None
        return torch.stack([self._read(sinks_name(layer)).float() for layer in range(self._config.num_layers)])

    def mlp(self, layer: int) -> MlpWeights:
        """Read and fuse the MLP of a layer that has no experts."""
        block = f"{layer_prefix(layer)}.mlp"
        names = ("gate_up_proj",) if self._config.is_gate_up_fused else ("gate_proj", "up_proj")
        return MlpWeights(self._fused(block, names), self._fused(block, ("down_proj",)))

    def router(self, layer: int, moe: MoeConfig) -> Tensor:
        """The router [experts, hidden] of a mixture-of-experts layer."""
        return self._read(router_name(layer, moe, is_stacked=self._is_stacked))

    def router_bias(self, layer: int, moe: MoeConfig) -> Tensor | None:
        """The router's bias [experts], where the family has one."""
        name = router_bias_name(layer, moe)
        return None if name is None else self._read(name)

    def selection_bias(self, layer: int, moe: MoeConfig) -> Tensor | None:
        """Bias on the scores by which experts are chosen, float32 [experts], where the family has it."""
        if (name := selection_bias_name(layer, moe)) is None:
            return None
        stored = self._tensors[name].whole().float()
        check_numbers(self._tensors[name], stored, self._dtype)
        return stored.to(self._device, copy=True)

    def shared_expert(self, layer: int, moe: MoeConfig) -> MlpWeights:
        """The MLP that every token goes through."""
        block = shared_prefix(layer, moe)
        return MlpWeights(self._fused(block, ("gate_proj", "up_proj")), self._fused(block, ("down_proj",)))

    def shared_gate(self, layer: int, moe: MoeConfig) -> Tensor | None:
        """Its gate [1, hidden], where the family has one."""
        name = shared_gate_name(layer, moe)
        return None if name is None else self._read(name)

    def experts(self, layer: int, moe: MoeConfig) -> Iterator[MlpWeights]:
        """Read the experts of a layer one by one, so that only one is held twice while it is packed."""
        for expert in range(moe.num_experts):
            if moe.names.is_interleaved:
                yield MlpWeights(*(self._interleaved(name, expert) for name in stacked_names(layer)))
                continue
            if self._is_stacked:
                first, second = (LinearWeights(self._rounded(self._row(n, expert)), None) for n in stacked_names(layer))
            else:
                gate, up, last = expert_names(layer, expert, moe)
                first, second = (LinearWeights(self._weight(names), None) for names in ([gate, up], [last]))
            yield MlpWeights(first, second)

    def _interleaved(self, name: str, expert: int) -> LinearWeights:
        weight, bias = read_interleaved(self._tensors, self._row, name, expert)
        if isinstance(weight, QuantisedWeight):
            if self._keeps_codes and self._rounding == "auto":
                return LinearWeights(weight, bias)
            weight = self._to_compute_type(weight.floats())
        return LinearWeights(self._rounded(weight), bias)

    def _to_compute_type(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)

    def biases(self) -> dict[tuple[int, str], Tensor]:
        """(layer, projection) -> bias [out_features], of all projections that an adapter may name."""
        config = self._config
        return {
            (layer, name): self._projection(projection_name(layer, name, "bias")).clone()
            for layer in range(config.num_layers)
            for name in config.projection_shapes(layer)
            if config.has_bias(name)
        }

    def kv_scales(self) -> Tensor:
        """Scales of K and V in fp8, float32 [layers, 2, kv_heads].

        Raises:
            InvalidCheckpoint: a scale is not one positive number.
        """
        scales = read_kv_scales(self._config, self._tensors, lambda name: self._tensors[name].whole().float())
        return scales.to(self._device)

    def _fused(self, block: str, projections: tuple[str, ...]) -> LinearWeights:
        has_bias = self._config.has_bias(projections[0])
        weight = self._weight([f"{block}.{name}.weight" for name in projections])
        biases = [self._projection(f"{block}.{name}.bias") for name in projections] if has_bias else []
        return LinearWeights(weight, torch.cat(biases) if biases else None)

    def _weight(self, names: list[str]) -> AnyWeight | tuple[AnyWeight, ...]:
        """The weight of one product, of several layers that have the same inputs."""
        if any(self._stays_codes(self._tensors.get(name)) for name in names):
            return self._kept_codes(names)
        if not any(name in self._quantised for name in names):
            return self._rounded(torch.cat([self._projection(name) for name in names]))
        if self._feature_order is not None and any(name.endswith(_ROTATED_SUFFIXES) for name in names):
            raise InvalidCheckpoint(
                f"tensor {names[0]} is quantised, and {self._config.architecture} rotates a part of each head: "
                "that is not supported together; serve float weights"
            )
        schemes = [self._quantised[name].scheme if name in self._quantised else None for name in names]
        if schemes != schemes[:1] * len(names):
            other = names[[scheme != schemes[0] for scheme in schemes].index(True)]
            raise InvalidCheckpoint(
                f"tensor {other} is stored by another scheme than {names[0]}: "
                "q, k and v are one product, and so are gate and up"
            )
        read = [self._quantised[name].read() for name in names]
        if nested := [part for part in read if isinstance(part, NestedWeight)]:
            return NestedWeight.joined(nested)
        parts = [part for part in read if isinstance(part, QuantisedWeight)]
        for name, part in zip(names, parts, strict=True):
            if not has_order(part, parts[0]):
                raise InvalidCheckpoint(
                    f"tensor {name} has its inputs in another order (desc_act) than {names[0]}: "
                    "q, k and v are one product, and so are gate and up"
                )
        return fused(parts)

    def _stays_codes(self, stored: StoredTensor | None) -> TypeGuard[GgufTensor]:
        return self._keeps_codes and isinstance(stored, GgufTensor) and stored.scheme is not None

    def _kept_codes(self, names: list[str]) -> AnyWeight | tuple[AnyWeight, ...]:
        """The weight of one product of a GGUF file, blocks of which stay codes; layers of one scheme are joined."""
        stored = ((name, self._tensors[name]) for name in names)
        return joined_weights(t.codes() if self._stays_codes(t) else self._projection(name) for name, t in stored)

    def _rounded(self, weight: Tensor) -> Tensor | QuantisedWeight:
        if self._rounding == "auto" or not can_round(weight.shape[1], self._rounding):
            return weight
        return rounded(weight, self._rounding)

    def _qk_norm(self, block: str) -> Tensor:
        query, key = self._mapped(f"{block}.q_norm.weight"), self._mapped(f"{block}.k_norm.weight")
        if self._feature_order is not None:
            query, key = query[self._feature_order], key[self._feature_order]
        return torch.cat((query.expand(self._config.num_heads, -1), key.expand(self._config.num_kv_heads, -1)))

    def _norm(self, layer: int, name: str | None) -> Tensor | None:
        return None if name is None else self._read(norm_name(layer, name))

    def _projection(self, name: str) -> Tensor:
        """Weight or bias of a projection, its rows in the order of the computation; may lie in the mapped file."""
        tensor, order = self._mapped(name), row_order(self._config, name.split(".")[-2])
        return tensor if order is None else tensor[order.to(tensor.device)]

    def _read(self, name: str) -> Tensor:
        """A tensor of our own: a later write into the file changes nothing here."""
        if isinstance(self._tensors[name], GgufTensor):
            return self._mapped(name)
        mapped = self._tensors[name].whole()
        tensor = self._converted(name, mapped)
        return tensor.clone() if tensor is mapped else tensor

    def _row(self, name: str, index: int) -> Tensor:
        return self._converted(name, self._tensors[name].rows(index)).clone()

    def _mapped(self, name: str) -> Tensor:
        """A tensor that may lie in the mapped file; to be copied."""
        if isinstance(stored := self._tensors[name], GgufTensor):
            return stored.floats(self._dtype).to(self._device)
        return self._converted(name, self._tensors[name].whole())

    def _converted(self, name: str, tensor: Tensor) -> Tensor:
        if not self._is_checked:
            check_numbers(self._tensors[name], tensor, self._dtype)
        return tensor.to(device=self._device, dtype=self._dtype)
