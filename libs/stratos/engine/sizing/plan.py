"""Chooses type, KV pool and context of one engine, or refuses with the numbers: pure.

    memory that is free, less that of the other workers here
      - weights - run-time, activations and graphs - adapters - staging and host pool (a GPU: rings of ``cuda_ipc``)
                                                                              = what is left
      x share (CPU), or up to gpu_memory_utilization of the device         = the largest KV pool
    the pool is what the batch is expected to use, at least one whole context; on a GPU all that is left

Adapters come later than all that was set and than the least pool: where those leave less, they get less, and the plan
says so instead of refusing.

A CPU's memory belongs to other programs as well, and a pool is touched at start, so a pool that no batch fills would
only cost time there.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.sizing.case import (
    EXPECTED_RANK,
    EXPECTED_TOKENS,
    GIB,
    LOADING_ADAPTERS,
    MIB,
    STAGING_RINGS,
    Room,
    SizingCase,
)
from stratos.engine.sizing.need import ModelNeed

SMALL_FLOAT32_BYTES = 256 * MIB
"""Weights up to this size are computed in float32 on a CPU: they cost a token a few milliseconds at most."""
LEAST_HOST_BYTES, MOST_HOST_BYTES, MOST_HOST_POOLS = 256 * MIB, 32 * GIB, 4
"""Bounds of host memory that is chosen here, the last one in KV pools: it is page-locked, and a start waits for it."""
LEAST_TOKENS = 1024
"""A pool chosen here holds a sequence of so many tokens, or the engine does not start."""


@dataclass(frozen=True, slots=True)
class SizingChoice:
    """One line for the reader: what, how much, why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Sizes of the engine, with their reasons."""

    dtype: str
    kv_pool_bytes: int
    host_pool_bytes: int
    max_model_len: int
    state_slots: int = 0
    choices: tuple[SizingChoice, ...]


def plan_engine(case: SizingCase) -> EnginePlan:
    """Choose what was not set.

    Raises:
        InvalidCheckpoint: it cannot fit; the text has what is needed, what there is, and what to change.
    """
    need, room, config = case.need, case.room, case.config
    longest = case.set_model_len or need.max_model_len
    if longest > need.max_model_len:
        raise InvalidCheckpoint(f"max_model_len={longest} is more than the model's context of {need.max_model_len}")
    dtype, why_dtype = _choose_dtype(case)
    token_bytes = need.token_bytes(dtype, config.kv_dtype, has_scales=not room.is_gpu)
    least_len = longest if case.set_model_len else min(longest, LEAST_TOKENS)
    least = config.kv_pool_bytes or (case.tokens_for(least_len) if case.bounds_context else 1) * token_bytes
    fixed = case.fixed_bytes(dtype)
    if room.free_bytes and sum(fixed.values()) + least > room.share_bytes:
        raise InvalidCheckpoint(_refusal(fixed | {_pool_name(least, token_bytes): least}, room, dtype))
    adapters = case.adapter_bytes(dtype)
    if room.free_bytes:
        adapters = min(adapters, room.share_bytes - sum(fixed.values()) - least)
    if config.kv_pool_bytes:
        pool, why_pool = config.kv_pool_bytes, "as set"
    else:
        pool, why_pool = _choose_pool(case, least, longest, token_bytes, sum(fixed.values()) + adapters)
    held = int(pool // token_bytes * case.scheduler.kv_watermark)
    is_cut = held < longest and case.bounds_context and not config.kv_pool_bytes
    why_len = "as set" if case.set_model_len else "the model's"
    if is_cut:
        longest, why_len = held, f"what the pool holds; the model's is {need.max_model_len:,}"
    host_pool, why_host = _choose_host_pool(case, pool)
    return EnginePlan(
        dtype=dtype,
        kv_pool_bytes=pool,
        host_pool_bytes=host_pool,
        max_model_len=longest,
        state_slots=case.state_slots,
        choices=(
            SizingChoice("dtype", dtype, why_dtype),
            SizingChoice("weights", size(need.weight_bytes(dtype)), _why_weights(need)),
            SizingChoice("KV pool", size(pool), f"{pool // token_bytes:,} tokens of {size(token_bytes)}; {why_pool}"),
            *_state_choice(case),
            SizingChoice("host tier", size(host_pool) if host_pool else "off", why_host),
            *_adapter_choice(case, dtype, adapters),
            *_draft_choice(case, dtype),
            *_staging_choice(case),
            SizingChoice("context", f"{longest:,}", why_len),
        ),
    )


def _choose_dtype(case: SizingCase) -> tuple[str, str]:
    stored = case.need.stored_dtype
    if case.config.dtype != "auto":
        return case.config.dtype, "as set"
    if stored == "float32":
        return "float32", "as stored"
    # quantising makes no model small
    if not case.room.is_gpu and case.need.float_bytes <= SMALL_FLOAT32_BYTES:
        return "float32", f"stored as {stored}; small, and equal to the reference token by token"
    return stored, "as stored: half of float32's bytes for each token to read"


def _why_weights(need: ModelNeed) -> str:
    codes = f"; {size(need.code_bytes)} of them stay quantised" if need.code_bytes else ""
    floats = f"; quantised in the file and floats in memory: {', '.join(need.widened)}" if need.widened else ""
    return f"copies for the products included{codes}{floats}"


def _adapter_choice(case: SizingCase, dtype: str, num_bytes: int) -> tuple[SizingChoice, ...]:
    number, whole = case.config.max_resident_adapters, case.adapter_bytes(dtype)
    if not case.need.rank_elements:
        return ()
    if not number:
        return (SizingChoice("adapters", "none", "max_resident_adapters is 0"),)
    why = f"{number} of rank {EXPECTED_RANK} and {LOADING_ADAPTERS} that load; set max_resident_adapters, 0 for none"
    if num_bytes < whole:
        why = f"not the {size(whole)} of {why}, or lower kv_pool_bytes or max_model_len"
    return (SizingChoice("adapters", size(num_bytes), why),)


def _draft_choice(case: SizingCase, dtype: str) -> tuple[SizingChoice, ...]:
    pool, draft = case.draft_pool_bytes(dtype), case.draft
    if draft is None or not pool:
        return ()
    why = f"{case.scheduler.max_num_seqs} sequences of {EXPECTED_TOKENS:,}, apart from the KV pool"
    weights = size(draft.weight_bytes(case.draft_dtype(dtype)))
    return (
        SizingChoice("draft model", weights, "read beside the model"),
        SizingChoice("KV of drafts", size(pool), why),
    )


def _state_choice(case: SizingCase) -> tuple[SizingChoice, ...]:
    if not case.state_slots:
        return ()
    one, why = case.need.state_bytes, "as set" if case.config.state_slots else "three for each place of the batch"
    text = f"{case.state_slots} of {size(one)}; {why}: set state_slots"
    return (SizingChoice("states", size(case.state_slots * one), text),)


def _staging_choice(case: SizingCase) -> tuple[SizingChoice, ...]:
    if not (case.room.is_gpu and case.held_bytes):
        return ()
    why = "all that may be open or not yet unmapped; set cuda_ipc.max_pairs and staging.slots_per_pair"
    return (SizingChoice(STAGING_RINGS, size(case.held_bytes), why),)


def _choose_pool(case: SizingCase, least: int, longest: int, token_bytes: int, fixed: int) -> tuple[int, str]:
    room, num_seqs, share = case.room, case.scheduler.max_num_seqs, case.memory_share
    block_bytes = token_bytes * case.config.block_size
    batch = num_seqs * EXPECTED_TOKENS
    one = case.tokens_for(longest) if case.bounds_context else 0
    wanted = -(-max(batch, one) // case.config.block_size) * block_bytes
    why = f"{num_seqs} sequences of {EXPECTED_TOKENS:,}" if batch >= one else "one sequence of the whole context"
    if not room.free_bytes:
        return wanted, why
    if room.is_gpu:
        most = min(int(room.total_bytes * share), room.free_bytes) - fixed
        return max(least, most) // block_bytes * block_bytes, f"up to {share:.0%} of the device"
    most = int((room.share_bytes - fixed) * share)
    if most >= wanted:
        return wanted, why
    return (
        max(least, most // block_bytes * block_bytes),
        f"{share:.0%} of what {size(room.share_bytes)} ({room.limited_by}) leave, not {size(wanted)}",
    )


def _choose_host_pool(case: SizingCase, pool: int) -> tuple[int, str]:
    config, room = case.config, case.room
    if not room.is_gpu:
        why = "a larger KV pool is the same memory, without copies"
        return config.host_pool_bytes, f"as set; {why}" if config.host_pool_bytes else f"on a CPU {why}"
    most = min(int(room.host_free_bytes * config.host_memory_share), MOST_HOST_POOLS * pool, MOST_HOST_BYTES)
    if most < LEAST_HOST_BYTES or most <= config.host_pool_bytes:
        return config.host_pool_bytes, "as set"
    return most, f"evicted KV, of {size(room.host_free_bytes)} that are free beside the GPU; set host_memory_share"


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
