"""Time of a decode step and of a prompt: what must be read, what must be multiplied, whichever takes longer.

All is divided by the devices of a tensor-parallel group, as if their exchange cost nothing: an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stratos.calculators.bounds import above_zero, not_below_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.hardware.devices import DeviceSpec
from stratos.calculators.memory.gpu_memory import MemoryAsk, estimate_gpu_memory
from stratos.calculators.memory.kv import estimate_kv
from stratos.calculators.memory.schemes import ELEMENT_BYTES, SCHEMES_HELP, find_scheme, product_bytes
from stratos.calculators.models.shape import ModelShape

_EXPERTS = Formula("experts_read", "experts * (1 - (1 - chosen / experts) ** rows)")
_READ = Formula("read_bytes", "linear_bytes + experts_read * expert_bytes + output_bytes")
_KV_READ = Formula("kv_read_bytes", "rows * seen_tokens * token_layer_bytes")
_KV_SHARE = Formula("kv_share", "ceil(kv_heads / tp) / kv_heads")
_MEMORY = Formula("memory_ms", "1000 * (read_bytes / tp + kv_read_bytes * kv_share) / (bandwidth_bytes_s * mbu)")
_MOVED = Formula("state_moved_bytes", "2 * rows * state_layers * state_size * 4")
_MEMORY_WITH_STATES = Formula(
    "memory_ms",
    "1000 * ((read_bytes + state_moved_bytes) / tp + kv_read_bytes * kv_share) / (bandwidth_bytes_s * mbu)",
)
_FLOPS = Formula("token_flops", "2 * active_parameters + 4 * attention_size * seen_tokens")
_COMPUTE = Formula("compute_ms", "1000 * rows * token_flops / (tp * peak_flops * mfu)")
_STEP = Formula("step_ms", "max(memory_ms, compute_ms)")
_PROMPT_FLOPS = Formula(
    "prompt_flops", "2 * (active_parameters - table_parameters) * prompt_tokens + 4 * attention_size * seen_pairs"
)
_PROMPT = Formula(
    "prompt_ms", "1000 * max(prompt_flops / (tp * peak_flops * mfu), read_bytes / (tp * bandwidth_bytes_s * mbu))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAsk:
    """Requests of one kind, and how they are served."""

    weights: Annotated[str, SCHEMES_HELP] = "bfloat16"
    kv_dtype: Annotated[str, "KV: auto (as weights are computed), float32, bfloat16, float16, fp8, int8."] = "auto"
    prompt_tokens: Annotated[int, "Tokens of a prompt."] = 1024
    output_tokens: Annotated[int, "Tokens of an answer."] = 256
    tp: Annotated[int, "Devices that share each layer (tensor parallel)."] = 1
    mbu: Annotated[float, "Share of the bandwidth that steps reach; published engines: 0.62 to 0.81."] = 0.7
    mfu: Annotated[float, "Share of the peak that prompts reach; published engines: 0.26 to 0.67."] = 0.5
    itl_ms: Annotated[float, "Most milliseconds between tokens; 0: no promise."] = 0
    ttft_ms: Annotated[float, "Most milliseconds for a prompt; 0: no promise."] = 0
    max_num_seqs: Annotated[int, "Most sequences in a batch."] = 256
    utilization: Annotated[float, "Share of a device's memory that the engine takes."] = 0.9

    @property
    def seq_len(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def mean_context(self) -> int:
        """Tokens that a step finds in the cache of a sequence, on average over its answer."""
        return self.prompt_tokens + self.output_tokens // 2

    def checked(self) -> ServingAsk:
        """Raises ``BadRequest`` for a value that makes no sense, by name."""
        above_zero(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens, tp=self.tp)
        above_zero(max_num_seqs=self.max_num_seqs)
        not_below_zero(itl_ms=self.itl_ms, ttft_ms=self.ttft_ms)
        shares(mbu=self.mbu, mfu=self.mfu, utilization=self.utilization)
        return self

    def memory(self) -> MemoryAsk:
        """The same as a question about memory: sequences at their full length."""
        return MemoryAsk(
            weights=self.weights, kv_dtype=self.kv_dtype, seq_len=self.seq_len, tp=self.tp,
            utilization=self.utilization, max_num_seqs=self.max_num_seqs,
        )  # fmt: skip


class Roofline:
    """Steps and prompts of one model on one device, for batches of any size."""

    def __init__(self, shape: ModelShape, device: DeviceSpec, ask: ServingAsk) -> None:
        ask.checked()
        scheme = find_scheme(ask.weights)
        self._shape, self._ask = shape, ask
        self._rates = {"tp": ask.tp, "bandwidth_bytes_s": device.bandwidth_bytes_s, "mbu": ask.mbu}
        self._peak = {"tp": ask.tp, "peak_flops": device.peak_flops(ask.weights), "mfu": ask.mfu}
        small_bytes = shape.small_parameters * ELEMENT_BYTES[scheme.compute]
        self._weights = {
            "linear_bytes": product_bytes(scheme, shape.linear).value,
            "expert_bytes": product_bytes(scheme, shape.expert).value,
            "output_bytes": shape.table_parameters * scheme.head_bytes + small_bytes,
        }
        self._token_layer_bytes = estimate_kv(shape, ask.memory())["token_layer_bytes"]
        memory = estimate_gpu_memory(shape, ask.memory(), device)
        self.most_rows, self.weights_bytes = int(memory["sequences"]), memory["weights_bytes"]
        """Sequences of the full length that the memory holds, and bytes of the weights on all devices."""

    def step(self, rows: int) -> tuple[Figure, ...]:
        """Figures of a step of ``rows`` sequences; the last one is ``step_ms``."""
        shape, seen = self._shape, self._shape.seen(self._ask.mean_context)
        read = self._read(rows)
        kv = _KV_READ(rows=rows, seen_tokens=seen, token_layer_bytes=self._token_layer_bytes)
        share = _KV_SHARE("of a device", kv_heads=shape.num_kv_heads, tp=self._ask.tp)
        moved = self._moved(rows)
        parts = {one.name: one.value for one in (read[-1], kv, share, *moved)}
        memory = (_MEMORY_WITH_STATES if moved else _MEMORY)(**parts, **self._rates)
        why = "seen_tokens: the mean context, added up over the layers"
        flops = _FLOPS(
            why, active_parameters=shape.active_parameters, attention_size=shape.attention_size, seen_tokens=seen
        )
        compute = _COMPUTE(rows=rows, token_flops=flops.value, **self._peak)
        step = _STEP(memory_ms=memory.value, compute_ms=compute.value)
        return *read, kv, share, *moved, memory, flops, compute, step

    def _moved(self, rows: int) -> tuple[Figure, ...]:
        """Bytes of recurrent states that a step moves; none where no layer has one."""
        if not self._shape.state_layers:
            return ()
        sizes = {"state_layers": self._shape.state_layers, "state_size": self._shape.state_size}
        return (_MOVED("read and written in float32", rows=rows, **sizes),)

    def step_ms(self, rows: int) -> float:
        """Milliseconds of a step of ``rows`` sequences."""
        return self.step(rows)[-1].value

    def prompt(self) -> tuple[Figure, ...]:
        """Figures of one prompt; the last one is ``prompt_ms``."""
        shape, tokens = self._shape, self._ask.prompt_tokens
        sizes = [tokens if window is None else min(window, tokens) for window in shape.windows]
        pairs = sum(size * tokens - size * size / 2 for size in sizes)
        flops = _PROMPT_FLOPS(
            "seen_pairs: of a token and one before it, in all layers", active_parameters=shape.active_parameters,
            table_parameters=shape.table_parameters, prompt_tokens=tokens, attention_size=shape.attention_size,
            seen_pairs=pairs,
        )  # fmt: skip
        read = self._read(tokens)[-1].value
        return flops, _PROMPT(prompt_flops=flops.value, read_bytes=read, **(self._peak | self._rates))

    def _read(self, rows: int) -> tuple[Figure, ...]:
        if not self._shape.num_experts:
            return (_READ(experts_read=0, **self._weights),)
        why = "of each layer, if a token's experts are drawn evenly"
        experts = _EXPERTS(why, experts=self._shape.num_experts, chosen=self._shape.num_chosen, rows=rows)
        return experts, _READ(experts_read=experts.value, **self._weights)
