"""The decoder: one forward pass over a flat batch of tokens of many sequences, without padding.

Per layer: RMS norm -> fused q/k/v -> rotary -> attention (writes KV into the pages, reads context back from
them) -> output projection -> RMS norm -> fused gate/up -> SiLU -> down projection.  Logits are computed only for
rows that sample.  Families differ by configuration fields, not by classes.

Shapes: T tokens, H hidden, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend
from stratos.engine.layers.linear import Linear, LinearFactory
from stratos.engine.layers.rotary import RotaryTable
from stratos.engine.lora.batch import LoraBatch
from stratos.engine.models.config import DecoderConfig
from stratos.engine.models.loader import CheckpointReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Weights of one layer, ready to run."""

    input_norm: Tensor
    post_attention_norm: Tensor
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear


class Decoder:
    """A loaded model; holds weights and tables, no state of sequences."""

    def __init__(
        self, config: DecoderConfig, reader: CheckpointReader, linear: LinearFactory, device: torch.device
    ) -> None:
        self.config = config
        self._embedding = reader.embedding()
        self._layers = [_ready_layer(reader, index, linear) for index in range(config.num_layers)]
        self._final_norm = reader.final_norm()
        lm_head = reader.lm_head()
        self._lm_head = linear(self._embedding if lm_head is None else lm_head)
        self._rotary = RotaryTable(config.rope, config.head_dim, config.max_model_len, device)

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend, metadata: Any, lora: LoraBatch | None
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
        config, eps, hidden_shape = self.config, self.config.rms_norm_eps, (self.config.hidden_size,)
        num_rotated = config.num_heads + config.num_kv_heads
        cos, sin = self._rotary.rows(positions)
        hidden = F.embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            x = torch.rms_norm(hidden, hidden_shape, layer.input_norm, eps)
            qkv = layer.qkv(x)
            if lora is not None:
                lora.add("qkv", index, x, qkv)
            heads = qkv.view(-1, num_rotated + config.num_kv_heads, config.head_dim)
            rotated = self._rotary.apply(heads[:, :num_rotated], cos, sin)
            query, key = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            x = attention.forward(index, query, key, heads[:, num_rotated:], metadata)
            hidden = hidden + _with_lora(layer.output, lora, "output", index, x)
            x = torch.rms_norm(hidden, hidden_shape, layer.post_attention_norm, eps)
            gate, up = _with_lora(layer.gate_up, lora, "gate_up", index, x).chunk(2, -1)
            hidden = hidden + _with_lora(layer.down, lora, "down", index, F.silu(gate) * up)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [S, V] of hidden states [S, H]."""
        config = self.config
        normed = torch.rms_norm(hidden, (config.hidden_size,), self._final_norm, config.rms_norm_eps)
        return self._lm_head(normed).float()


def _ready_layer(reader: CheckpointReader, index: int, linear: LinearFactory) -> DecoderLayer:
    weights = reader.layer(index)
    return DecoderLayer(
        input_norm=weights.input_norm,
        post_attention_norm=weights.post_attention_norm,
        qkv=linear(weights.qkv.weight, weights.qkv.bias),
        output=linear(weights.output.weight, weights.output.bias),
        gate_up=linear(weights.gate_up.weight, weights.gate_up.bias),
        down=linear(weights.down.weight, weights.down.bias),
    )


def _with_lora(linear: Linear, lora: LoraBatch | None, group: str, layer: int, x: Tensor) -> Tensor:
    out = linear(x)
    if lora is not None:
        lora.add(group, layer, x, out)
    return out
