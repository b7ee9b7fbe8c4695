"""A runner over a model of random weights in the shape of Llama-3.1-8B; nothing is read from disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scripts.gpu.rig import Rig
from stratos.common.clock import SystemClock
from stratos.core.kv import KvGeometry, KvIdentity
from stratos.engine.checkpoint.layer_weights import AttentionWeights, LinearWeights, MlpWeights
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.lora.host_copy import HostAdapter
from stratos.engine.lora.store import LoraStore
from stratos.engine.lora.weights import LoraWeights, lay_out
from stratos.engine.memory.host_pages import HostPages
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.models.decoder import Decoder
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.runner.kernels import choose_kernels
from stratos.engine.settings import RunnerConfig
from stratos.engine.switches import KernelSwitches

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
TINY: dict[str, Any] = {
    **LLAMA_8B,
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
BLOCK, RANK = 16, 16


class RandomReader:
    """Gives the decoder random tensors where a checkpoint would give its own; the same ones each time."""

    def __init__(self, config: DecoderConfig, rig: Rig) -> None:
        self._config, self._dtype, self._device = config, rig.dtype, rig.device
        self._known: dict[str, Tensor] = {}

    def _tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self._known:
            self._known[name] = torch.randn(shape, dtype=self._dtype, device=self._device).mul_(0.02)
        return self._known[name]

    def _norm(self, name: str) -> Tensor:
        return self._tensor(name, self._config.hidden_size) + 1.0

    def _linear(self, name: str, out_features: int, in_features: int) -> LinearWeights:
        return LinearWeights(self._tensor(name, out_features, in_features), None)

    def embedding(self) -> Tensor:
        """[vocab, hidden]."""
        return self._tensor("embedding", self._config.vocab_size, self._config.hidden_size)

    def lm_head(self) -> Tensor:
        """[vocab, hidden]."""
        return self._tensor("head", self._config.vocab_size, self._config.hidden_size)

    def final_norm(self) -> Tensor:
        """[hidden]."""
        return self._norm("final_norm")

    def attention(self, layer: int) -> AttentionWeights:
        """One layer without its MLP."""
        config = self._config
        return AttentionWeights(
            before_attention=self._norm(f"input_norm_{layer}"),
            after_attention=None,
            before_mlp=self._norm(f"post_norm_{layer}"),
            after_mlp=None,
            qkv=self._linear(f"qkv_{layer}", config.q_size + 2 * config.kv_size, config.hidden_size),
            output=self._linear(f"output_{layer}", config.hidden_size, config.q_size),
            qk_norm=None,
        )

    def whole_qk_norm(self, layer: int) -> None:
        """A Llama has none."""

    def mlp(self, layer: int) -> MlpWeights:
        """The MLP of one layer."""
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        return MlpWeights(
            self._linear(f"gate_up_{layer}", 2 * inner, hidden), self._linear(f"down_{layer}", hidden, inner)
        )

    def step_bytes(self) -> int:
        """Weights that a decode step reads: all but the embedding."""
        return sum(t.numel() * t.element_size() for name, t in self._known.items() if name != "embedding")


class RandomModel:
    """Weights and pages; makes runners that differ in their switches."""

    def __init__(self, rig: Rig, num_blocks: int) -> None:
        self._rig = rig
        self.config = parse_decoder_config(TINY if rig.is_rehearsal else LLAMA_8B)
        self.reader = RandomReader(self.config, rig)
        self.geometry = KvGeometry(
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            block_size=BLOCK,
            element_bytes=rig.dtype.itemsize,
        )
        self._pages = KvPages(self.geometry, num_blocks, rig.dtype, rig.device)
        self._linear = LinearFactory(rig.device, rig.dtype, enable_prepacked_gemm=False)

    def runner(self, largest: int, num_adapters: int = 0, **switches: bool) -> CudaRunner:
        """A runner whose decode steps hold up to ``largest`` rows; ``switches`` of its kernels.

        ``num_adapters``: loaded as ``adapter_name`` names them, each with every projection.
        """
        rig, config = self._rig, self.config
        if not num_adapters:
            switches["grouped_lora"] = False  # nothing to capture twice
        settings = RunnerConfig(
            model_path=rig.path,
            max_graph_batch=largest,
            max_resident_adapters=max(1, num_adapters),
            kernels=KernelSwitches(triton_kernels=True, **switches),
        )
        kernels = choose_kernels(settings, rig.device, rig.dtype)
        linear = kernels.linear(settings, rig.device, rig.dtype)
        decoder = Decoder(config, self.reader, linear, kernels.ops, rig.device)  # type: ignore[arg-type]
        attention = kernels.attention(self._pages, config.num_heads, config.windows, rig.dtype)
        identity = KvIdentity(model_digest="random", kv_dtype="any", rope_variant="any", numerics_id="any")
        info = RunnerInfo(
            identity=identity,
            geometry=self.geometry,
            num_blocks=self._pages.num_blocks,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=(),
        )
        host = HostPages(self._pages, 0, SystemClock())
        adapters = LoraStore(max(1, num_adapters), 0, self._read_adapter, self._lay_out_adapter)
        for index in range(num_adapters):
            adapters.load(RandomAdapter(adapter_name(index)))  # type: ignore[arg-type]
        runner = CudaRunner(info, decoder, attention, self._pages, host, adapters)
        runner.prepare(settings)
        return runner

    def _read_adapter(self, files: Any) -> HostAdapter:
        """Every projection, rank ``RANK``; memory of its own, so that a step reads what it would read."""
        rig, tensors = self._rig, {}
        for layer in range(self.config.num_layers):
            for name, (num_out, num_in) in self.config.projection_shapes(layer).items():
                for part, shape in (("A", (RANK, num_in)), ("B", (num_out, RANK))):
                    tensors[layer, name, part] = torch.randn(shape, dtype=rig.dtype, device=rig.device).mul_(0.01)
        return HostAdapter(files.digest, tensors)

    def _lay_out_adapter(self, adapter: HostAdapter) -> LoraWeights:
        return lay_out(adapter, self.config, self._linear, {}, self._rig.device)


@dataclass(frozen=True)
class RandomAdapter:
    """The part of ``AdapterFiles`` that a store reads."""

    digest: str


def adapter_name(index: int) -> str:
    """Name of an adapter of ``RandomModel.runner``."""
    return f"adapter-{index}"
