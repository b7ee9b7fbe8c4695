"""The decoder: one forward pass over a flat batch of tokens of many sequences, without padding.

Per layer: RMS norm -> fused q/k/v -> attention (rotates, writes KV into the pages, reads context back from them) ->
output projection -> RMS norm -> fused gate/up -> activation -> down projection; each result is added into the residual
by the norm that follows it.  Logits are computed only for rows that sample.  Families differ by options of the
configuration (``checkpoint.families``), not by classes: where norms stand, what q and k are normed and rotated by,
scales and caps, windows, and mixtures of experts in place of an MLP.

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
from stratos.engine.checkpoint.layer_weights import AttentionWeights, LatentParts, LinearWeights, MlpWeights
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.rope_config import RopeConfig
from stratos.engine.layers.linear import FloatLinear, Linear, LinearFactory
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.ops import LayerOps, MlpGate, capped
from stratos.engine.layers.rotary import RotaryTable, StreamingRotary
from stratos.engine.lora.batch import StepLora
from stratos.engine.memory.state_slots import StepStates
from stratos.engine.models.delta import DeltaRule, gate_heads
from stratos.engine.models.latent import LatentOutput, LatentQkv, LatentRotary


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Weights of one layer, ready to run."""

    before_attention: Tensor | None
    """Weights of the norms, as in ``NormNames``."""
    after_attention: Tensor | None
    before_mlp: Tensor | None
    after_mlp: Tensor | None
    qkv: Linear
    output: Linear
    qk_norm: QkNorm | None
    whole_qk_norm: tuple[Tensor, Tensor] | None
    """Weights of the norms over all heads of q, and of k."""
    rope: int
    """Which of the decoder's rotations it has."""
    place: int
    """Index of the layer among those of its kind: with attention, or with a state."""
    delta: DeltaRule | None
    """In place of attention."""
    gate: Linear | None
    """Gate of the result of attention."""
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
        self.rotaries: tuple[RotaryTable | StreamingRotary | LatentRotary, ...] = (
            (rotary,) if rotary else tuple(_ready_rotary(rope, config, device) for rope in dict.fromkeys(config.ropes))
        )
        """The rotations of the layers, each one once."""
        scale = config.options.embedding_scale
        if config.options.is_embedding_scale_rounded:
            scale = float(torch.tensor(scale).to(self.embedding.dtype))
        self.embedding_scale = scale

    @property
    def has_experts(self) -> bool:
        """Some layer is a mixture of experts."""
        return any(isinstance(layer.mlp, MixtureOfExperts) for layer in self.layers)

    @property
    def routing_names(self) -> tuple[str, ...]:
        """Parts of the numerics id for the choice of experts."""
        names = (layer.mlp.name for layer in self.layers if isinstance(layer.mlp, MixtureOfExperts))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def waits_for_host(self) -> bool:
        """Some layer asks the host how many tokens an expert has, so a step cannot be captured."""
        return any(isinstance(layer.mlp, MixtureOfExperts) and layer.mlp.grouped is None for layer in self.layers)

    def refill(self, reader: CheckpointReader, linear: LinearFactory) -> None:
        """Read all weights again, in the order of the start, into the memory that they have.

        Args:
            reader: of the same files.
            linear: as at the start; its memory is being filled.
        """
        embedding = reader.embedding()
        for index in range(self.config.num_layers):
            _ready_layer(reader, self.config, index, linear, self.ops)
        if self.lm_head is not None:
            lm_head = reader.lm_head()
            linear.to_float32(embedding if lm_head is None else lm_head)

    def linears(self) -> Iterator[Linear]:
        """The products of every layer that is not a mixture of experts, and of the head."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output)
            if layer.gate is not None:
                yield layer.gate
            if isinstance(layer.mlp, GatedMlp):
                yield from (layer.mlp.gate_up, layer.mlp.down)
        if isinstance(self.lm_head, FloatLinear):
            yield self.lm_head.linear

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        metadata: Any,
        lora: StepLora | None,
        states: StepStates | None = None,
    ) -> Tensor:
        """Run all layers and write KV.

        Args:
            token_ids: int64 [T].
            positions: int64 [T], absolute.
            attention: owns the pages.
            metadata: what ``attention.prepare`` returned for this step.
            lora: adapters of the step, or ``None``.
            states: of its rows, where the model has some.

        Returns:
            Hidden states before the final norm [T, H].
        """
        ropes = [rotary.rows(positions) for rotary in self.rotaries]
        residual, x = self._embedded(token_ids), None
        for index, layer in enumerate(self.layers):
            x = self._input(x, residual, layer.before_attention)
            qkv = _with_lora(layer.qkv, lora, "qkv", index, x)
            if layer.whole_qk_norm is not None:
                self._norm_whole(qkv, *layer.whole_qk_norm)
            if layer.delta is not None:
                assert states is not None, "this model has states"
                x = layer.delta(qkv, states)
            else:
                gate = None if layer.gate is None else layer.gate(x)
                x = attention.forward(layer.place, qkv, ropes[layer.rope], layer.qk_norm, metadata)
                x = x if gate is None else self._gated(x, gate)
            x = self._result(_with_lora(layer.output, lora, "output", index, x), layer.after_attention)
            x = self._input(x, residual, layer.before_mlp)
            x = self._result(_mlp(layer.mlp, lora, index, x), layer.after_mlp)
        assert x is not None
        return residual.add_(x)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        embedded = F.embedding(token_ids, self.embedding)
        return embedded if self.embedding_scale == 1.0 else embedded.mul_(self.embedding_scale)

    def _input(self, x: Tensor | None, residual: Tensor, norm: Tensor | None) -> Tensor:
        """Begin a half of a layer: add the result ``x`` before it into the residual, and norm the sum."""
        eps, offset = self.config.rms_norm_eps, self.config.options.norm_offset
        if norm is None:
            return residual if x is None else residual.add_(x)
        if x is None:
            return self.ops.rms_norm(residual, norm, eps, offset)
        return self.ops.add_rms_norm(x, residual, norm, eps, offset)

    def _result(self, x: Tensor, norm: Tensor | None) -> Tensor:
        """End a half of a layer: norm and scale its result."""
        options = self.config.options
        if norm is not None:
            x = self.ops.rms_norm(x, norm, self.config.rms_norm_eps, options.norm_offset)
        return x if options.residual_scale == 1.0 else x * options.residual_scale

    def _gated(self, x: Tensor, gate: Tensor) -> Tensor:
        assert isinstance(self.ops, NativeOps), "checked when the model was loaded"
        return gate_heads(self.ops.library, x, gate)

    def _norm_whole(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor) -> None:
        """Norm q and k in place, each over all of its heads."""
        begin, eps, offset = 0, self.config.rms_norm_eps, self.config.options.norm_offset
        for norm in (query_norm, key_norm):
            part = qkv[:, begin : begin + norm.shape[0]]
            part.copy_(self.ops.rms_norm(part.contiguous(), norm, eps, offset))
            begin += norm.shape[0]

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Float32 logits [S, V] of hidden states [S, H]; in ``out``, where that is given (not by the C++ kernels)."""
        assert self.lm_head is not None, "this model only embeds"
        states = self.final_states(hidden)
        if out is None:
            return self.finished(self.lm_head(states))
        assert isinstance(self.lm_head, FloatLinear)
        return self.finished(self.lm_head.into(states, out))

    @property
    def finishes_logits(self) -> bool:
        """``finished`` changes something."""
        return self.config.options.logit_divisor != 1.0 or bool(self.config.options.logit_cap)

    def finished(self, logits: Tensor) -> Tensor:
        """Divide and cap the output layer's logits, in place."""
        options = self.config.options
        if options.logit_divisor != 1.0:
            logits.div_(options.logit_divisor)
        return logits.copy_(capped(logits, options.logit_cap)) if options.logit_cap else logits

    def final_states(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, H] after the model's last norm: what embeddings are pooled from."""
        return self.ops.rms_norm(hidden, self.final_norm, self.config.rms_norm_eps, self.config.options.norm_offset)


def _ready_layer(
    reader: CheckpointReader, config: DecoderConfig, index: int, linear: LinearFactory, ops: LayerOps
) -> DecoderLayer:
    weights, offset = reader.attention(index), config.options.norm_offset
    qkv, output = _ready_attention(weights, config, linear, ops)
    return DecoderLayer(
        before_attention=weights.before_attention,
        after_attention=weights.after_attention,
        before_mlp=weights.before_mlp,
        after_mlp=weights.after_mlp,
        qkv=qkv,
        output=output,
        qk_norm=None if weights.qk_norm is None else QkNorm(weights.qk_norm, config.rms_norm_eps, offset),
        whole_qk_norm=reader.whole_qk_norm(index),
        rope=list(dict.fromkeys(config.ropes)).index(config.ropes[index]),
        place=_place(config, index),
        delta=_delta(reader, config, index, ops),
        gate=None if weights.gate is None else _ready(weights.gate, linear),
        mlp=_ready_experts(reader, config, index, linear, ops)
        if config.has_experts(index)
        else _ready_mlp(reader.mlp(index), linear, ops, _gate(config)),
    )


def _ready_attention(
    weights: AttentionWeights, config: DecoderConfig, linear: LinearFactory, ops: LayerOps
) -> tuple[Linear, Linear]:
    """Products before attention, and after it."""
    if config.latent is None:
        assert isinstance(weights.qkv, LinearWeights)
        return _ready(weights.qkv, linear), _ready(weights.output, linear)
    assert isinstance(weights.qkv, LatentParts)
    qkv = LatentQkv(config.latent, weights.qkv, lambda own: _ready(own, linear), linear, ops)
    return qkv, LatentOutput(config.latent, weights.qkv, _ready(weights.output, linear), linear)


def _ready_rotary(rope: RopeConfig, config: DecoderConfig, device: torch.device) -> RotaryTable | LatentRotary:
    table = RotaryTable(rope, config.rotary_dim, config.max_model_len, device)
    return LatentRotary(table, config.latent) if config.latent else table


def _place(config: DecoderConfig, index: int) -> int:
    kind = config.delta.layers if config.delta is not None and config.has_state(index) else config.kv_layers
    return kind.index(index)


def _delta(reader: CheckpointReader, config: DecoderConfig, index: int, ops: LayerOps) -> DeltaRule | None:
    if config.delta is None or not config.has_state(index):
        return None
    assert isinstance(ops, NativeOps), "checked before the model is loaded"
    place = _place(config, index)
    return DeltaRule(ops.library, config.delta, place, reader.delta(index), config.rms_norm_eps)


def _ready_experts(
    reader: CheckpointReader, config: DecoderConfig, index: int, linear: LinearFactory, ops: LayerOps
) -> MixtureOfExperts:
    moe = config.moe
    assert moe is not None
    router, shared_gate = reader.router(index, moe), reader.shared_gate(index, moe)
    return MixtureOfExperts(
        # scores to which a bias is added are those of float32 where kernels have it, and DeepSeek's
        router=linear.to_float32(router)
        if moe.routing.is_sigmoid or config.latent
        else linear(router, reader.router_bias(index, moe)),
        selection_bias=reader.selection_bias(index, moe),
        shared=_ready_mlp(reader.shared_expert(index, moe), linear, ops, _gate(config)) if moe.shared_size else None,
        shared_gate=None if shared_gate is None else linear(shared_gate),
        experts=tuple(_ready_mlp(expert, linear, ops, _gate(config)) for expert in reader.experts(index, moe)),
        routing=moe.routing,
    )


def _gate(config: DecoderConfig) -> MlpGate:
    return MlpGate(config.options.activation, config.options.activation_limit)


def _ready_mlp(weights: MlpWeights, linear: LinearFactory, ops: LayerOps, gate: MlpGate) -> GatedMlp:
    return GatedMlp(_ready(weights.gate_up, linear), _ready(weights.down, linear), ops, gate)


def _ready(weights: LinearWeights, linear: LinearFactory) -> Linear:
    if isinstance(weights.weight, tuple):
        return linear.joined(weights.weight, weights.bias)
    if isinstance(weights.weight, Tensor):
        return linear(weights.weight, weights.bias)
    return linear.quantised(weights.weight, weights.bias)


def _mlp(mlp: GatedMlp | MixtureOfExperts, lora: StepLora | None, layer: int, x: Tensor) -> Tensor:
    """The second half of a layer; adapters apply to a dense one alone, experts have none."""
    if lora is None or isinstance(mlp, MixtureOfExperts):
        return mlp(x)
    activated = mlp.ops.gated(_with_lora(mlp.gate_up, lora, "gate_up", layer, x), mlp.gate)
    return _with_lora(mlp.down, lora, "down", layer, activated)


def _with_lora(linear: Linear, lora: StepLora | None, group: str, layer: int, x: Tensor) -> Tensor:
    out = linear(x)
    if lora is not None:
        lora.add(group, layer, x, out)
    return out
