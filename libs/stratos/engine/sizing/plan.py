"""Chooses type, KV pool and context of one engine, or refuses with the numbers: pure.

    memory that is free, less that of the other workers here
      - weights - run-time, activations and graphs - staging and host pool = what is left (a GPU: rings of ``cuda_ipc``)
      x share (CPU), or up to gpu_memory_utilization of the device         = the largest KV pool
    the pool is what the batch is expected to use, at least one whole context; on a GPU all that is left

A CPU's memory belongs to other programs as well, and a pool is touched at start, so a pool that no batch fills would
only cost time there.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.errors import InvalidCheckpoint
from stratos.core.rules.admission import KV_WATERMARK
from stratos.engine.sizing.need import DTYPE_BYTES, ModelNeed

MIB, GIB = 1 << 20, 1 << 30
SMALL_FLOAT32_BYTES = 256 * MIB
"""Weights up to this size are computed in float32 on a CPU: they cost a token a few milliseconds at most."""
EXPECTED_TOKENS = 1024
"""Of a sequence, prompt and output, on average."""
LEAST_TOKENS = 1024
"""A pool chosen here holds a sequence of so many tokens, or the engine does not start."""
CPU_RUNTIME_BYTES, GPU_RUNTIME_BYTES = 400 * MIB, 1 * GIB
"""Of the process: interpreter, torch and its libraries; on a GPU context, kernels and captured graphs."""
STAGING_RINGS = "KV rings"
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
    limited_by: str = "memory"
    num_sharers: int = 1
    """Engines that start on this memory."""

    @property
    def share_bytes(self) -> int:
        return self.free_bytes // self.num_sharers


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingWishes:
    """What was set; "auto" and 0 leave the choice."""

    dtype: str = "auto"
    kv_dtype: str = "auto"
    kv_pool_bytes: int = 0
    max_model_len: int = 0
    block_size: int = 16
    memory_share: float = 0.5
    """Of the memory that is left on a CPU; of the whole device on a GPU."""
    bounds_context: bool = True
    """A sequence holds KV of its whole context; windows that release blocks, and streaming, do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingWork:
    """What the engine does at once, and what else it takes."""

    num_seqs: int = 64
    num_batched_tokens: int = 512
    kv_watermark: float = KV_WATERMARK
    """Share of the pool that one request may fill."""
    graph_rows: int = 0
    num_graph_sets: int = 1
    """Steps with adapters have graphs of their own."""
    staging_bytes: int = 0
    """Staging memory, and the host pool, as far as they lie in the memory of ``Room``."""


@dataclass(frozen=True, slots=True)
class SizingChoice:
    """One line for the reader: what, how much, why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What the engine takes."""

    dtype: str
    kv_pool_bytes: int
    max_model_len: int
    choices: tuple[SizingChoice, ...]


def plan_engine(need: ModelNeed, room: Room, wishes: SizingWishes, work: SizingWork) -> EnginePlan:
    """Choose what was not set.

    Raises:
        InvalidCheckpoint: it cannot fit; the text has what is needed, what there is, and what to change.
    """
    longest = wishes.max_model_len or need.max_model_len
    if longest > need.max_model_len:
        raise InvalidCheckpoint(f"max_model_len={longest} is more than the model's context of {need.max_model_len}")
    dtype, why_dtype = _choose_dtype(need, room, wishes)
    token_bytes = need.token_bytes(dtype, wishes.kv_dtype)
    least_len = longest if wishes.max_model_len else min(longest, LEAST_TOKENS)
    least = wishes.kv_pool_bytes or (_tokens_for(least_len, wishes, work) if wishes.bounds_context else 1) * token_bytes
    fixed = _fixed_bytes(need, room, work, dtype)
    if room.free_bytes and sum(fixed.values()) + least > room.share_bytes:
        raise InvalidCheckpoint(_refusal(fixed | {_pool_name(least, token_bytes): least}, room, dtype))
    if wishes.kv_pool_bytes:
        pool, why_pool = wishes.kv_pool_bytes, "as set"
    else:
        pool, why_pool = _choose_pool(least, longest, token_bytes, sum(fixed.values()), room, wishes, work)
    held = int(pool // token_bytes * work.kv_watermark)
    is_cut = held < longest and wishes.bounds_context and not wishes.kv_pool_bytes
    why_len = "as set" if wishes.max_model_len else "the model's"
    if is_cut:
        longest, why_len = held, f"what the pool holds; the model's is {need.max_model_len:,}"
    return EnginePlan(
        dtype=dtype,
        kv_pool_bytes=pool,
        max_model_len=longest,
        choices=(
            SizingChoice("dtype", dtype, why_dtype),
            SizingChoice("weights", size(need.weight_bytes(dtype)), "copies for the products included"),
            SizingChoice("KV pool", size(pool), f"{pool // token_bytes:,} tokens of {size(token_bytes)}; {why_pool}"),
            *_staging_choice(room, work),
            SizingChoice("context", f"{longest:,}", why_len),
        ),
    )


def _choose_dtype(need: ModelNeed, room: Room, wishes: SizingWishes) -> tuple[str, str]:
    if wishes.dtype != "auto":
        return wishes.dtype, "as set"
    in_float32 = need.weight_bytes("float32")
    if need.stored_dtype == "float32":
        return "float32", "as stored"
    if not room.is_gpu and in_float32 <= SMALL_FLOAT32_BYTES:
        return "float32", f"stored as {need.stored_dtype}; small, and equal to the reference token by token"
    return need.stored_dtype, "as stored: half of float32's bytes for each token to read"


def _fixed_bytes(need: ModelNeed, room: Room, work: SizingWork, dtype: str) -> dict[str, int]:
    """Everything but the pool."""
    element = DTYPE_BYTES[dtype]
    logits = work.num_seqs * need.vocab_size * 4
    activations = work.num_batched_tokens * need.widest * 4 * element + 2 * logits
    graphs = work.graph_rows * (work.num_graph_sets * GRAPH_ROW_BYTES + need.vocab_size * 4)
    runtime = GPU_RUNTIME_BYTES + graphs if room.is_gpu else CPU_RUNTIME_BYTES
    parts = {"weights": need.weight_bytes(dtype), "run-time and activations": runtime + activations}
    name = STAGING_RINGS if room.is_gpu else "staging and host pool"
    return parts | ({name: work.staging_bytes} if work.staging_bytes else {})


def _staging_choice(room: Room, work: SizingWork) -> tuple[SizingChoice, ...]:
    if not (room.is_gpu and work.staging_bytes):
        return ()
    why = "all that may be open or not yet unmapped; set cuda_ipc.max_pairs and staging.slots_per_pair"
    return (SizingChoice(STAGING_RINGS, size(work.staging_bytes), why),)


def _choose_pool(
    least: int, longest: int, token_bytes: int, fixed: int, room: Room, wishes: SizingWishes, work: SizingWork
) -> tuple[int, str]:
    block_bytes = token_bytes * wishes.block_size
    batch = work.num_seqs * EXPECTED_TOKENS
    one = _tokens_for(longest, wishes, work) if wishes.bounds_context else 0
    wanted = -(-max(batch, one) // wishes.block_size) * block_bytes
    why = f"{work.num_seqs} sequences of {EXPECTED_TOKENS:,}" if batch >= one else "one sequence of the whole context"
    if not room.free_bytes:
        return wanted, why
    if room.is_gpu:
        most = min(int(room.total_bytes * wishes.memory_share), room.free_bytes) - fixed
        return max(least, most) // block_bytes * block_bytes, f"up to {wishes.memory_share:.0%} of the device"
    most = int((room.share_bytes - fixed) * wishes.memory_share)
    if most >= wanted:
        return wanted, why
    return (
        max(least, most // block_bytes * block_bytes),
        f"{wishes.memory_share:.0%} of what {size(room.share_bytes)} ({room.limited_by}) leave, not {size(wanted)}",
    )


def _tokens_for(length: int, wishes: SizingWishes, work: SizingWork) -> int:
    """Tokens of a pool whose admitted part holds a sequence of ``length``, in whole blocks."""
    blocks = -(-length // wishes.block_size)
    while int(blocks * wishes.block_size * work.kv_watermark) < length:
        blocks += max(1, int((length - blocks * wishes.block_size * work.kv_watermark) / wishes.block_size))
    return blocks * wishes.block_size


def _pool_name(pool: int, token_bytes: int) -> str:
    return f"KV pool of {pool // token_bytes:,} tokens"


def _refusal(parts: dict[str, int], room: Room, dtype: str) -> str:
    needed = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
    others = f" for each of {room.num_sharers} workers" if room.num_sharers > 1 else ""
    device = "the GPU" if room.is_gpu else "this machine"
    changes = ["lower kv_pool_bytes or max_model_len"]
    if dtype == "float32":
        changes.append("set dtype to bfloat16 or float16")
    if STAGING_RINGS in parts:
        changes.append("lower cuda_ipc.max_pairs or staging.slots_per_pair")
    if room.num_sharers > 1:
        changes.append("start fewer workers")
    changes.append("raise the container's limit" if room.limited_by != "memory" else "take a smaller model")
    return (
        f"the model does not fit into {device}: it needs {size(sum(parts.values()))} in {dtype} ({needed}), and there "
        f"is {size(room.share_bytes)}{others} ({room.limited_by}); {', '.join(changes)}, or free memory"
    )


def size(num_bytes: int) -> str:
    """A number of bytes for people."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
