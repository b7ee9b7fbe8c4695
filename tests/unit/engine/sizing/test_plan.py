"""What an engine takes of a machine: the choices, their reasons, and refusals that name the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.settings import SchedulerConfig
from stratos.engine.sizing.case import GIB, GRAPH_ROW_BYTES, MIB, Room, SizingCase
from stratos.engine.sizing.need import ModelNeed
from stratos.engine.sizing.plan import EnginePlan, plan_engine
from tests.support.worlds.engine_settings import runner_config

SMALL = ModelNeed(
    stored_dtype="bfloat16", num_weights=5_500_000, table_bytes=1 << 20, kv_elements=1536, max_model_len=4096,
    vocab_size=4096, widest=1408, has_window=False,
)  # fmt: skip
LARGE = replace(SMALL, num_weights=8 * 10**9, kv_elements=65536, max_model_len=131072, vocab_size=128256, widest=28672)
LAPTOP = Room(is_gpu=False, total_bytes=16 * GIB, free_bytes=8 * GIB)
SERVER = Room(is_gpu=False, total_bytes=128 * GIB, free_bytes=100 * GIB)
GPU = Room(is_gpu=True, total_bytes=80 * GIB, free_bytes=79 * GIB)


def plan(need: ModelNeed, room: Room, *, transport_bytes: int = 0, num_seqs: int = 64, **runner: object) -> EnginePlan:
    config, scheduler = runner_config(**runner), SchedulerConfig(max_num_seqs=num_seqs)
    return plan_engine(
        SizingCase(need=need, room=room, config=config, scheduler=scheduler, transport_bytes=transport_bytes)
    )


def test_a_small_model_gets_what_its_batch_uses_and_no_more() -> None:
    chosen = plan(SMALL, LAPTOP)
    assert (chosen.dtype, chosen.max_model_len) == ("float32", 4096)
    assert chosen.kv_pool_bytes == 64 * 1024 * 1536 * 4
    assert plan(SMALL, SERVER).kv_pool_bytes == chosen.kv_pool_bytes


def test_a_draft_model_and_its_kv_are_planned_before_the_pool() -> None:
    draft = replace(SMALL, num_weights=1_100_000, kv_elements=384)
    case = SizingCase(need=SMALL, room=LAPTOP, config=runner_config(), scheduler=SchedulerConfig(), draft=draft)
    pool = 64 * 1024 * 384 * 4
    assert case.draft_pool_bytes("float32") == case.draft_pool_bytes("bfloat16") == pool
    assert case.fixed_bytes("float32")["draft model and its KV"] == pool + draft.weight_bytes("float32")
    assert "KV of drafts" in [choice.name for choice in plan_engine(case).choices]
    tight = replace(LAPTOP, free_bytes=500 * MIB)
    assert plan(SMALL, tight)
    with pytest.raises(InvalidCheckpoint, match="draft model and its KV"):
        plan_engine(replace(case, room=tight))


@pytest.mark.parametrize(
    ("stored", "room", "dtype"),
    [("bfloat16", SERVER, "bfloat16"), ("float16", SERVER, "float16"), ("float32", SERVER, "float32"),
     ("float16", GPU, "float16")],
)  # fmt: skip
def test_a_large_model_is_computed_as_it_is_stored(stored: str, room: Room, dtype: str) -> None:
    assert plan(replace(LARGE, stored_dtype=stored), room).dtype == dtype


def test_a_pool_on_a_cpu_stays_within_its_share_and_the_context_within_the_pool() -> None:
    room = replace(SERVER, free_bytes=24 * GIB)
    chosen = plan(LARGE, room)
    left = room.free_bytes - LARGE.weight_bytes("bfloat16")
    assert 0.3 * left < chosen.kv_pool_bytes < 0.5 * left
    held = chosen.kv_pool_bytes // (65536 * 2)
    assert LARGE.max_model_len > chosen.max_model_len == int(held * 0.9)
    assert any(choice.name == "context" and "131,072" in choice.reason for choice in chosen.choices)


def test_a_pool_holds_one_whole_context_where_there_is_room() -> None:
    chosen = plan(LARGE, SERVER, num_seqs=4)
    assert chosen.max_model_len == 131072
    assert 131072 <= chosen.kv_pool_bytes // (65536 * 2) * 0.9 < 131072 + 64


def test_a_gpu_gives_the_pool_all_that_its_utilisation_leaves() -> None:
    chosen = plan(LARGE, GPU, grouped_lora=False)
    used = chosen.kv_pool_bytes + LARGE.weight_bytes("bfloat16")
    assert 0.85 * 80 * GIB < used < 0.9 * 80 * GIB - 1 * GIB
    assert plan(LARGE, GPU, cuda_graphs=False).kv_pool_bytes > chosen.kv_pool_bytes
    two_sets = plan(LARGE, GPU)
    assert chosen.kv_pool_bytes - two_sets.kv_pool_bytes == pytest.approx(256 * GRAPH_ROW_BYTES, abs=MIB * 4)


def test_another_process_on_the_gpu_makes_the_pool_smaller() -> None:
    shared = replace(GPU, free_bytes=40 * GIB)
    assert plan(LARGE, shared, gpu_memory_utilization=0.95).kv_pool_bytes < 25 * GIB


def test_staging_and_other_workers_are_counted() -> None:
    room = replace(SERVER, free_bytes=30 * GIB)
    alone = plan(LARGE, room).kv_pool_bytes
    staged = plan(LARGE, room, transport_bytes=2 * GIB).kv_pool_bytes
    assert alone - staged == pytest.approx(1 * GIB, rel=0.01)
    with pytest.raises(InvalidCheckpoint, match=r"for each of 2 workers.*start fewer workers"):
        plan(LARGE, replace(room, num_sharers=2))


def test_rings_on_a_gpu_are_counted_named_and_refused() -> None:
    alone, staged = (plan(LARGE, GPU, transport_bytes=num_bytes) for num_bytes in (0, 2 * GIB))
    assert alone.kv_pool_bytes - staged.kv_pool_bytes == pytest.approx(2 * GIB, abs=MIB * 4)
    lines = {choice.name: choice for choice in staged.choices}
    assert lines["KV rings"].value == "2.0 GiB"
    assert "cuda_ipc.max_pairs" in lines["KV rings"].reason
    assert "KV rings" not in {choice.name for choice in alone.choices}
    tight = {"kv_pool_bytes": 62 * GIB, "cuda_graphs": False}
    assert plan(LARGE, GPU, **tight).kv_pool_bytes == 62 * GIB
    with pytest.raises(InvalidCheckpoint, match=r"KV rings 2\.0 GiB.*lower cuda_ipc\.max_pairs or staging\.slots_per"):
        plan(LARGE, GPU, transport_bytes=2 * GIB, **tight)


def test_what_was_set_is_taken_as_it_is() -> None:
    chosen = plan(SMALL, LAPTOP, dtype="float16", kv_pool_bytes=3 * MIB, max_model_len=100)
    assert (chosen.dtype, chosen.kv_pool_bytes, chosen.max_model_len) == ("float16", 3 * MIB, 100)
    assert plan(SMALL, LAPTOP, kv_pool_bytes=3 * MIB).max_model_len == 4096


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    limited = replace(LAPTOP, limited_by="container limit")
    with pytest.raises(InvalidCheckpoint) as refused:
        plan(LARGE, limited, dtype="float32")
    text = refused.value.message
    assert "weights 29.8 GiB" in text
    assert "there is 8.0 GiB (container limit)" in text
    assert "set dtype to bfloat16" in text
    assert "raise the container's limit" in text


def test_a_context_that_was_asked_for_is_not_cut_but_refused() -> None:
    room = replace(SERVER, free_bytes=24 * GIB)
    with pytest.raises(InvalidCheckpoint, match=r"KV pool of 145,\d+ tokens 17\.\d GiB.*lower kv_pool_bytes or max_mo"):
        plan(LARGE, room, max_model_len=131072)
    assert plan(LARGE, room, max_model_len=8192).max_model_len == 8192
    with pytest.raises(InvalidCheckpoint, match="more than the model's context of 4096"):
        plan(SMALL, LAPTOP, max_model_len=4097)


def test_a_set_pool_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match="needs 9"):
        plan(SMALL, LAPTOP, kv_pool_bytes=9 * GIB)


def test_sequences_that_release_blocks_need_no_pool_of_a_whole_context() -> None:
    room = replace(SERVER, free_bytes=20 * GIB)
    assert plan(LARGE, room).max_model_len < 131072
    assert plan(replace(LARGE, has_window=True), room).max_model_len == 131072
    assert plan(LARGE, room, attention_window=4096).max_model_len == 131072


def test_nothing_is_refused_where_the_system_tells_nothing() -> None:
    assert plan(LARGE, replace(SERVER, free_bytes=0, total_bytes=0)).max_model_len == 131072


def test_blocks_that_become_floats_are_named() -> None:
    chosen = plan(replace(SMALL, widened=("Q5_1", "the embedding (Q6_K)"), code_bytes=3 * MIB), LAPTOP)
    (weights,) = [choice for choice in chosen.choices if choice.name == "weights"]
    assert weights.reason.endswith(
        "3.0 MiB of them stay quantised; quantised in the file and floats in memory: Q5_1, the embedding (Q6_K)"
    )


def test_codes_make_no_model_small() -> None:
    codes = replace(SMALL, num_weights=1_000_000, code_elements=100_000_000, code_bytes=59_375_000)
    assert plan(codes, SERVER).dtype == "bfloat16"
    assert plan(replace(codes, code_elements=50_000_000, code_bytes=29_687_500), SERVER).dtype == "float32"


def test_copies_of_codes_while_they_are_loaded_are_planned_where_they_are_larger_than_a_step() -> None:
    def taken(need: ModelNeed, draft: ModelNeed | None = None) -> int:
        case = SizingCase(need=need, room=LAPTOP, config=runner_config(), scheduler=SchedulerConfig(), draft=draft)
        return case.fixed_bytes("float32")["run-time and activations"]

    assert taken(replace(SMALL, load_bytes=1)) == taken(SMALL)
    loading = replace(SMALL, load_bytes=2 * GIB)
    assert taken(loading) == taken(SMALL, loading) == taken(replace(SMALL, load_bytes=GIB)) + GIB


WIDE = replace(LARGE, rank_elements=2_600_000)
ADAPTER_BYTES = 16 * 2_600_000 * 2


def adapter_line(chosen: EnginePlan) -> tuple[str, str]:
    (line,) = [choice for choice in chosen.choices if choice.name == "adapters"]
    return line.value, line.reason


def test_as_many_adapters_are_planned_as_the_settings_allow() -> None:
    none, few, many = (plan(WIDE, GPU, cuda_graphs=False, max_resident_adapters=count) for count in (0, 8, 24))
    assert none.kv_pool_bytes == plan(LARGE, GPU, cuda_graphs=False).kv_pool_bytes
    assert none.kv_pool_bytes - few.kv_pool_bytes == pytest.approx(10 * ADAPTER_BYTES, abs=MIB * 4)
    assert few.kv_pool_bytes - many.kv_pool_bytes == pytest.approx(16 * ADAPTER_BYTES, abs=MIB * 4)
    assert adapter_line(none) == ("none", "max_resident_adapters is 0")
    why = "8 of rank 16 and 2 that load; set max_resident_adapters, 0 for none"
    assert adapter_line(few) == ("793.5 MiB", why)


@pytest.mark.parametrize(("host_bytes", "num_copies"), [(0, 0), (1 << 40, 8), (3 * ADAPTER_BYTES, 3)])
def test_copies_of_adapters_on_the_host_are_planned_on_a_cpu_alone(host_bytes: int, num_copies: int) -> None:
    config = runner_config(host_adapter_bytes=host_bytes)
    on_cpu, on_gpu = (
        SizingCase(need=WIDE, room=room, config=config, scheduler=SchedulerConfig()) for room in (SERVER, GPU)
    )
    assert on_cpu.adapter_bytes("bfloat16") == (10 + num_copies) * ADAPTER_BYTES
    assert on_gpu.adapter_bytes("bfloat16") == 10 * ADAPTER_BYTES


@pytest.mark.parametrize("tight", [{"kv_pool_bytes": 62 * GIB}, {"max_model_len": 131072}])
def test_what_fits_without_adapters_is_not_refused_for_their_sake(tight: dict[str, int]) -> None:
    tight |= {"cuda_graphs": False}
    free = GPU.free_bytes if "kv_pool_bytes" in tight else 36 * GIB
    room = replace(GPU, free_bytes=free)
    alone, planned = (plan(need, room, max_resident_adapters=96, **tight) for need in (LARGE, WIDE))
    assert (planned.max_model_len, planned.dtype) == (alone.max_model_len, alone.dtype)
    value, reason = adapter_line(planned)
    assert reason.startswith("not the 7.6 GiB of 96 of rank 16 and 2 that load; set max_resident_adapters, 0 for none")
    assert reason.endswith("or lower kv_pool_bytes or max_model_len")
    assert value < "7"
    if "kv_pool_bytes" in tight:
        assert planned.kv_pool_bytes == 62 * GIB
    else:
        assert planned.kv_pool_bytes <= alone.kv_pool_bytes


@pytest.mark.parametrize(
    ("free", "share", "asked", "host"),
    [
        (100 * GIB, 0.25, 0, 25 * GIB),
        (100 * GIB, 0.0, 0, 0),
        (900 * GIB, 0.25, 0, 32 * GIB),  # page-locked, and the start waits for it
        (800 * MIB, 0.25, 0, 0),
        (0, 0.25, 0, 0),  # unknown
        (800 * MIB, 0.25, GIB, GIB),
        (100 * GIB, 0.25, GIB, 25 * GIB),
        (100 * GIB, 0.25, 40 * GIB, 40 * GIB),
    ],
)
def test_beside_a_gpu_evicted_kv_takes_a_bounded_part_of_the_host(
    free: int, share: float, asked: int, host: int
) -> None:
    chosen = plan(LARGE, replace(GPU, host_free_bytes=free), host_memory_share=share, host_pool_bytes=asked)
    assert chosen.host_pool_bytes == host
    (choice,) = (choice for choice in chosen.choices if choice.name == "host tier")
    assert (choice.value == "off") == (host == 0)


def test_the_host_tier_of_a_small_pool_is_four_pools() -> None:
    room = replace(GPU, host_free_bytes=100 * GIB)
    assert plan(LARGE, room, host_memory_share=0.25, kv_pool_bytes=2 * GIB).host_pool_bytes == 8 * GIB


def test_on_a_cpu_the_host_tier_is_off_unless_asked_and_then_counted() -> None:
    tight = replace(SERVER, free_bytes=24 * GIB)
    off, on = (plan(LARGE, tight, host_memory_share=0.25, host_pool_bytes=size) for size in (0, 4 * GIB))
    assert (off.host_pool_bytes, on.host_pool_bytes) == (0, 4 * GIB)
    assert off.kv_pool_bytes - on.kv_pool_bytes == pytest.approx(2 * GIB, rel=0.01), "half of what is left is the pool"
    reasons = [next(choice.reason for choice in chosen.choices if choice.name == "host tier") for chosen in (off, on)]
    assert all("a larger KV pool is the same memory" in reason for reason in reasons)
