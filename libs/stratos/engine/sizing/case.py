"""One engine as ``plan`` sees it: its model, the memory of its device, and the settings that take memory."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.need import DTYPE_BYTES, ModelNeed

MIB, GIB = 1 << 20, 1 << 30
CPU_RUNTIME_BYTES, GPU_RUNTIME_BYTES = 400 * MIB, 1 * GIB
"""Memory of the process: interpreter, torch and its libraries; on a GPU context, kernels and captured graphs."""
STAGING_RINGS = "KV rings"
EXPECTED_TOKENS = 1024
"""Tokens of a sequence, prompt and output, on average."""
EXPECTED_RANK, LOADING_ADAPTERS = 16, 2
"""Rank of an adapter, on every linear layer; and adapters that are laid out before those that make room are gone."""
CPU_LOGIT_COPIES, GPU_LOGIT_COPIES = 2, 4
"""Of a batch's logits in float32; on a GPU those that penalties change, the counts of tokens, and those that a filter
sorts."""
STATES_PER_PLACE, LEAST_STATE_SLOTS = 3, 8
"""Slots for each place of the batch: two of the sequence, and a snapshot."""
GRAPH_ROW_BYTES = 256 * 1024
"""Private memory of one set of captured decode steps, by rows of the largest one; the logits that all share come on
top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory of the device that one engine may plan with."""

    is_gpu: bool
    total_bytes: int
    free_bytes: int
    """0: unknown, and nothing is refused."""
    host_free_bytes: int = 0
    """Beside a GPU, memory of its host that is free; 0: unknown."""
    limited_by: str = "memory"
    num_sharers: int = 1
    """Engines that start on this memory."""

    @property
    def share_bytes(self) -> int:
        return self.free_bytes // self.num_sharers


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingCase:
    """One engine on one device: the model, the memory, and the settings that leave a choice or take memory."""

    need: ModelNeed
    room: Room
    config: RunnerConfig
    scheduler: SchedulerConfig
    transport_bytes: int = 0
    """Staging memory of KV transports, as far as it lies in the memory of ``room``."""
    draft: ModelNeed | None = None
    """The draft model, where there is one."""

    @property
    def set_model_len(self) -> int:
        """Longest sequence as it was set; 0 leaves the choice, as streaming past the context does."""
        return 0 if self.config.streaming.is_on else self.config.max_model_len

    @property
    def bounds_context(self) -> bool:
        """A sequence holds KV of its whole context; windows that release blocks, and streaming, do not."""
        return not self.config.streaming.is_on and not self.need.has_window

    @property
    def memory_share(self) -> float:
        """Share of the memory that is left on a CPU; of the whole device on a GPU."""
        return self.config.gpu_memory_utilization if self.room.is_gpu else self.config.cpu_memory_share

    @property
    def state_slots(self) -> int:
        """Slots for recurrent states, where the model has some."""
        if not self.need.state_elements:
            return 0
        return self.config.state_slots or max(LEAST_STATE_SLOTS, STATES_PER_PLACE * self.scheduler.max_batch_slots)

    @property
    def held_bytes(self) -> int:
        """Memory of transports, and on a CPU of the host pool, which lies in the same memory."""
        return self.transport_bytes + (0 if self.room.is_gpu else self.config.host_pool_bytes)

    def fixed_bytes(self, dtype: str) -> dict[str, int]:
        """Parts of the memory that are neither the pool nor adapters."""
        need, num_seqs = self.need, self.scheduler.max_num_seqs
        tokens = self.scheduler.for_device("cuda" if self.room.is_gpu else "cpu").token_budget
        copies = GPU_LOGIT_COPIES if self.room.is_gpu else CPU_LOGIT_COPIES
        activations = tokens * need.widest * 4 * DTYPE_BYTES[dtype] + copies * num_seqs * need.vocab_size * 4
        runtime = GPU_RUNTIME_BYTES + self._graph_bytes() if self.room.is_gpu else CPU_RUNTIME_BYTES
        loading = max(model.load_bytes for model in (need, self.draft) if model is not None)
        transient = max(activations, loading)  # no step runs while weights are read
        parts = {"weights": need.weight_bytes(dtype), "run-time and activations": runtime + transient}
        if self.draft is not None:
            weights = self.draft.weight_bytes(self.draft_dtype(dtype))
            parts["draft model and its KV"] = weights + self.draft_pool_bytes(dtype)
        if self.state_slots:
            parts["recurrent states"] = self.state_slots * need.state_bytes
        name = STAGING_RINGS if self.room.is_gpu else "staging and host pool"
        return parts | ({name: self.held_bytes} if self.held_bytes else {})

    def adapter_bytes(self, dtype: str) -> int:
        """Memory of as many adapters as the settings allow, as expected; on a CPU their host copies lie in it, too."""
        number = self.config.max_resident_adapters
        if not number:
            return 0
        one = EXPECTED_RANK * self.need.rank_elements * DTYPE_BYTES[dtype]
        copies = 0 if self.room.is_gpu else min(self.config.host_adapter_bytes, number * one)
        return (number + LOADING_ADAPTERS) * one + copies

    def draft_dtype(self, dtype: str) -> str:
        """Type that the draft model counts in beside a model in ``dtype``: small ones become float32."""
        return dtype if self.scheduler.speculation.method == "self" else "float32"

    def draft_pool_bytes(self, dtype: str) -> int:
        """KV pool of the draft model: a batch of sequences of the expected length."""
        if self.draft is None:
            return 0
        return self.scheduler.max_num_seqs * EXPECTED_TOKENS * self.draft.token_bytes(self.draft_dtype(dtype))

    def _graph_bytes(self) -> int:
        """Memory of captured decode steps; those with adapters have graphs of their own."""
        kernels = self.config.kernels
        if not kernels.cuda_graphs:
            return 0
        num_sets = 2 if kernels.captures_adapters and self.config.max_resident_adapters else 1
        return self.config.max_graph_batch * (num_sets * GRAPH_ROW_BYTES + self.need.vocab_size * 4)

    def tokens_for(self, length: int) -> int:
        """Tokens of a pool whose admitted part holds a sequence of ``length``, in whole blocks."""
        size, watermark = self.config.block_size, self.scheduler.kv_watermark
        blocks = -(-length // size)
        while int(blocks * size * watermark) < length:
            blocks += max(1, int((length - blocks * size * watermark) / size))
        return blocks * size
