"""The decoder: one forward pass over a flat batch of tokens of many sequences, without padding.

Per layer: RMS norm -> fused q/k/v -> attention (rotates, writes KV into the pages, reads context back from them) ->
output projection -> RMS norm -> fused gate/up -> SiLU -> down projection; each result is added into the residual by the
norm that follows it.  Logits are computed only for rows that sample.  Families differ by configuration fields, not by
classes: q and k may be normed before they are rotated, a layer may see a window of the context, and its MLP may be a
mixture of experts.

Shapes: T tokens, H hidden, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend
from stratos.engine.attention.projections import QkNorm
from stratos.engine.checkpoint.loader import CheckpointReader, LinearWeights, MlpWeights
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.layers.linear import FloatLinear, Linear, LinearFactory
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.ops import LayerOps
from stratos.engine.layers.rotary import RotaryTable, StreamingRotary
from stratos.engine.lora.batch import StepLora


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Weights of one layer, ready to run."""

    input_norm: Tensor
    post_attention_norm: Tensor
    qkv: Linear
    output: Linear
    qk_norm: QkNorm | None
    mlp: GatedMlp | MixtureOfExperts


class Decoder:
    """A loaded model; holds weights and tables, no state of sequences."""

    def __init__(
        self,
        config: DecoderConfig,
        reader: CheckpointReader,
        linear: LinearFactory,
        ops: LayerOps,
        device: torch.device,
        rotary: StreamingRotary | None = None,
    ) -> None:
        self.config, self.ops = config, ops
        self.embedding = reader.embedding()
        self.layers = [_ready_layer(reader, config, index, linear, ops) for index in range(config.num_layers)]
        self.final_norm = reader.final_norm()
        self.lm_head: Linear | None = None
        if config.has_lm_head:
            lm_head = reader.lm_head()
            self.lm_head = linear.to_float32(self.embedding if lm_head is None else lm_head)
        self.rotary = rotary or RotaryTable(config.rope, config.head_dim, config.max_model_len, device)

    @property
    def has_experts(self) -> bool:
        """Some layer is a mixture of experts."""
        return any(isinstance(layer.mlp, MixtureOfExperts) for layer in self.layers)

    @property
    def waits_for_host(self) -> bool:
        """Some layer asks the host how many tokens an expert has, so a step cannot be captured."""
        return any(isinstance(layer.mlp, MixtureOfExperts) and layer.mlp.grouped is None for layer in self.layers)

    def linears(self) -> Iterator[Linear]:
        """The products of every layer that is not a mixture of experts, and of the head."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output)
            if isinstance(layer.mlp, GatedMlp):
                yield from (layer.mlp.gate_up, layer.mlp.down)
        if isinstance(self.lm_head, FloatLinear):
            yield self.lm_head.linear

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend, metadata: Any, lora: StepLora | None
    ) -> Tensor:
        """Run all layers and write KV.

        Args:
            token_ids: int64 [T].
            positions: int64 [T], absolute.
            attention: owns the pages.
            metadata: what ``attention.prepare`` returned for this step.
            lora: adapters of the step, or ``None``.

        Returns:
            Hidden states before the final norm [T, H].
        """
        ops, eps = self.ops, self.config.rms_norm_eps
        rope = self.rotary.rows(positions)
        residual = F.embedding(token_ids, self.embedding)
        x = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            if index:
                x = ops.add_rms_norm(x, residual, layer.input_norm, eps)
            qkv = _with_lora(layer.qkv, lora, "qkv", index, x)
            x = attention.forward(index, qkv, rope, layer.qk_norm, metadata)
            x = _with_lora(layer.output, lora, "output", index, x)
            x = ops.add_rms_norm(x, residual, layer.post_attention_norm, eps)
            x = _mlp(layer.mlp, lora, index, x)
        return residual.add_(x)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Float32 logits [S, V] of hidden states [S, H]; in ``out``, where that is given (not by the C++ kernels)."""
        assert self.lm_head is not None, "this model only embeds"
        states = self.final_states(hidden)
        if out is None:
            return self.lm_head(states)
        assert isinstance(self.lm_head, FloatLinear)
        return self.lm_head.into(states, out)

    def final_states(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, H] after the model's last norm: what embeddings are pooled from."""
        return self.ops.rms_norm(hidden, self.final_norm, self.config.rms_norm_eps)


def _ready_layer(
    reader: CheckpointReader, config: DecoderConfig, index: int, linear: LinearFactory, ops: LayerOps
) -> DecoderLayer:
    weights = reader.attention(index)
    return DecoderLayer(
        input_norm=weights.input_norm,
        post_attention_norm=weights.post_attention_norm,
        qkv=_ready(weights.qkv, linear),
        output=_ready(weights.output, linear),
        qk_norm=None if weights.qk_norm is None else QkNorm(weights.qk_norm, config.rms_norm_eps),
        mlp=_ready_experts(reader, config, index, linear, ops)
        if config.has_experts(index)
        else _ready_mlp(reader.mlp(index), linear, ops),
    )


def _ready_experts(
    reader: CheckpointReader, config: DecoderConfig, index: int, linear: LinearFactory, ops: LayerOps
) -> MixtureOfExperts:
    moe = config.moe
    assert moe is not None
    return MixtureOfExperts(
        router=linear(reader.router(index, moe)),
        experts=tuple(_ready_mlp(expert, linear, ops) for expert in reader.experts(index, moe)),
        num_chosen=moe.num_chosen,
        norms_chosen=moe.norms_chosen,
    )


def _ready_mlp(weights: MlpWeights, linear: LinearFactory, ops: LayerOps) -> GatedMlp:
    return GatedMlp(_ready(weights.gate_up, linear), _ready(weights.down, linear), ops)


def _ready(weights: LinearWeights, linear: LinearFactory) -> Linear:
    if isinstance(weights.weight, QuantisedWeight):
        return linear.quantised(weights.weight, weights.bias)
    return linear(weights.weight, weights.bias)


def _mlp(mlp: GatedMlp | MixtureOfExperts, lora: StepLora | None, layer: int, x: Tensor) -> Tensor:
    """The second half of a layer; adapters apply to a dense one alone, experts have none."""
    if lora is None or isinstance(mlp, MixtureOfExperts):
        return mlp(x)
    activated = mlp.ops.silu_mul(_with_lora(mlp.gate_up, lora, "gate_up", layer, x))
    return _with_lora(mlp.down, lora, "down", layer, activated)


def _with_lora(linear: Linear, lora: StepLora | None, group: str, layer: int, x: Tensor) -> Tensor:
    out = linear(x)
    if lora is not None:
        lora.add(group, layer, x, out)
    return out
