"""One decoder layer in float32, run over the text a sequence at a time, its products observed.

It is the engine's own ``Decoder`` with one layer whose embedding table is the hidden states that enter it: families,
norms, rotations and windows are computed by the code that serves them.  Products are plain, their weights floats that
codes stand for, and their rows are cut to bytes where the scheme does so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.checkpoint.layer_weights import AttentionWeights, LinearWeights, MlpWeights
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.ops import TorchOps
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.models.decoder import Decoder
from stratos.engine.runner.kernels import score_options

ProductName = Literal["qkv", "output", "gate_up", "down"]
PRODUCTS: tuple[ProductName, ...] = ("qkv", "output", "gate_up", "down")
"""In the order of the computation."""
BLOCK_SIZE = 16
CPU = torch.device("cpu")
Observer = Callable[[ProductName, Tensor], None]
"""Is given the inputs [tokens, inputs] of each product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatWeights:
    """Weights of a layer, float32, its parts fused as the decoder fuses them."""

    attention: AttentionWeights
    whole_qk_norm: tuple[Tensor, Tensor] | None
    mlp: MlpWeights

    def product(self, name: ProductName) -> LinearWeights:
        """Weight and bias of a product."""
        assert isinstance(self.attention.qkv, LinearWeights)
        parts = {"qkv": self.attention.qkv, "output": self.attention.output}
        return parts.get(name) or (self.mlp.gate_up if name == "gate_up" else self.mlp.down)

    def weight(self, name: ProductName) -> Tensor:
        """Weight of a product [outputs, inputs]."""
        weight = self.product(name).weight
        assert isinstance(weight, Tensor)
        return weight

    def with_products(self, weights: dict[ProductName, Tensor]) -> FloatWeights:
        """The layer with other weights in its products."""
        made = {name: LinearWeights(weights[name], self.product(name).bias) for name in PRODUCTS}
        attention = replace(self.attention, qkv=made["qkv"], output=made["output"])
        return replace(self, attention=attention, mlp=MlpWeights(made["gate_up"], made["down"]))


def read_layer(reader: CheckpointReader, layer: int) -> FloatWeights:
    """Read a layer of a float checkpoint."""
    return FloatWeights(
        attention=reader.attention(layer), whole_qk_norm=reader.whole_qk_norm(layer), mlp=reader.mlp(layer)
    )


class FloatLayer:
    """A layer ready to run over sequences of at most ``max_tokens``.

    Args:
        config: of the whole model.
        index: of the layer.
        weights: its weights.
        max_tokens: of a sequence.
        cuts_rows: inputs of products are cut to bytes, with a scale per token.
    """

    def __init__(
        self, config: DecoderConfig, index: int, weights: FloatWeights, max_tokens: int, *, cuts_rows: bool = False
    ) -> None:
        options = replace(config.options, embedding_scale=1.0)
        served = config.for_context(config.max_model_len)  # by which rotations may differ, not by the text's length
        rope, window = served.ropes[index : index + 1], config.windows[index : index + 1]
        alone = replace(
            config, num_layers=1, ropes=rope, windows=window, max_model_len=max_tokens, options=options,
            has_lm_head=False,
        )  # fmt: skip
        products = _Products(cuts_rows=cuts_rows)
        reader = cast("CheckpointReader", _OneLayer(weights))
        self._decoder = Decoder(alone, reader, products, TorchOps(), CPU)
        self._products, num_blocks = products, -(-max_tokens // BLOCK_SIZE)
        geometry = KvGeometry(
            num_layers=1, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, block_size=BLOCK_SIZE,
            element_bytes=4,
        )  # fmt: skip
        pages = KvPages(geometry, num_blocks, torch.float32, CPU)
        scores = score_options(options, None)
        self._attention = TorchPagedAttention(pages, config.num_heads, window, torch.float32, scores)

    def run(self, hidden: Tensor, observer: Observer | None = None) -> Tensor:
        """Hidden states [tokens, hidden] of one sequence behind the layer."""
        num_tokens = hidden.shape[0]
        table = tuple(range(-(-num_tokens // BLOCK_SIZE)))
        metadata = self._attention.prepare([RowSpan(0, num_tokens, 0, table)])
        places = torch.arange(num_tokens)
        self._products.observer, self._decoder.embedding = observer, hidden
        return self._decoder.forward(places, places, self._attention, metadata, None)


class _Products(LinearFactory):
    """Makes the four products of a layer in their order."""

    def __init__(self, *, cuts_rows: bool) -> None:
        super().__init__(CPU, torch.float32, enable_prepacked_gemm=False)
        self._names, self._cuts_rows = list(PRODUCTS), cuts_rows
        self.observer: Observer | None = None

    def __call__(self, weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        name = self._names.pop(0)

        def product(x: Tensor) -> Tensor:
            if self.observer is not None:
                self.observer(name, x)
            return F.linear(rows_in_bytes(x) if self._cuts_rows else x, weight, bias)

        return product


class _OneLayer:
    """The part of a checkpoint that ``Decoder`` reads where there is one layer."""

    def __init__(self, weights: FloatWeights) -> None:
        self._weights = weights

    def embedding(self) -> Tensor:
        return torch.empty(0)

    def final_norm(self) -> Tensor:
        return torch.empty(0)

    def attention(self, _: int) -> AttentionWeights:
        return self._weights.attention

    def whole_qk_norm(self, _: int) -> tuple[Tensor, Tensor] | None:
        return self._weights.whole_qk_norm

    def mlp(self, _: int) -> MlpWeights:
        return self._weights.mlp


def rows_in_bytes(x: Tensor) -> Tensor:
    """Floats that rows [tokens, inputs] are computed with where they are cut to bytes."""
    scales = x.abs().amax(1, keepdim=True) / 127
    scales = torch.where(scales > 0, scales, 1.0)
    return (x / scales).round() * scales


def mean_loss(
    config: DecoderConfig, head: tuple[Tensor, Tensor], rows: Sequence[Tensor], ids: Sequence[Tensor]
) -> float:
    """Mean natural log loss of each token but the first.

    Args:
        config: of the model.
        head: weight of the final norm, and of the output layer.
        rows: hidden states [tokens, hidden] behind the last layer, by window.
        ids: int64 [tokens] of each window.
    """
    norm, output = head
    options, losses = config.options, []
    for hidden, targets in zip(rows, ids, strict=True):
        states = TorchOps().rms_norm(hidden, norm, config.rms_norm_eps, options.norm_offset)
        logits = F.linear(states[:-1], output) / options.logit_divisor
        if options.logit_cap:
            logits = options.logit_cap * torch.tanh(logits / options.logit_cap)
        losses.append(F.cross_entropy(logits, targets[1:], reduction="sum"))
    return float(torch.stack(losses).sum()) / sum(len(targets) - 1 for targets in ids)
