"""Memory by formula: published figures recomputed, shares of parallel groups, and what can only grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.calculators.hardware.devices import devices
from stratos.calculators.memory.gpu_memory import MemoryAsk, estimate_gpu_memory
from stratos.calculators.memory.kv import KvAsk, estimate_kv
from stratos.calculators.models.known import find_shape, known_models
from stratos.calculators.published import published_gpu_memory
from stratos.common.errors import BadRequest
from stratos.engine.contract.kv_groups import group_layers
from stratos.engine.kv_cache.window import PartWindow

A100 = devices()["a100-80"]
models = st.sampled_from(sorted(known_models()))


@pytest.mark.parametrize(
    ("model", "token_bytes", "gb_4k", "gb_128k"),
    [("llama-3.1-8b", 131_072, 0.54, 17.2), ("llama-3.1-70b", 327_680, 1.34, 42.9),
     ("llama-3.1-405b", 516_096, 2.11, 67.6), ("mixtral-8x22b", 229_376, 0.94, 30.1),
     ("llama-2-13b", 819_200, 3.36, 107.4), ("deepseek-v3", 70_272, 0.29, 9.2)],
)  # fmt: skip
def test_kv_of_published_models(model: str, token_bytes: int, gb_4k: float, gb_128k: float) -> None:
    shape = find_shape(model)
    assert estimate_kv(shape, KvAsk())["token_bytes"] == token_bytes
    assert round(estimate_kv(shape, KvAsk(seq_len=4096))["kv_bytes"] / 1e9, 2) == gb_4k
    assert round(estimate_kv(shape, KvAsk(seq_len=131_072))["kv_bytes"] / 1e9, 1) == gb_128k


@pytest.mark.parametrize(
    ("weights", "kv_dtype", "fitting"),
    [("float16", "auto", [15, 7, 3]), ("int4", "auto", [21, 10, 5]), ("float16", "int8", [30, 15, 7]),
     ("int4", "int8", [42, 21, 10])],
)  # fmt: skip
def test_13b_on_80_gb_holds_what_was_recomputed(weights: str, kv_dtype: str, fitting: list[int]) -> None:
    """Claim 3.15, with its 2 GB for the run-time and all of the memory."""
    ask = MemoryAsk(weights=weights, kv_dtype=kv_dtype, utilization=1, runtime_gb=2)
    sheet = estimate_gpu_memory(find_shape("llama-2-13b"), ask, A100)
    assert [row[2] for row in sheet.grids[0].rows] == fitting


def test_the_published_code_returns_what_it_is_known_to_return() -> None:
    """Claim 4.2: 35, 171.8, 42.9, 25.0, in all 274.7 GB."""
    answer = published_gpu_memory(70, 4, 32, 2048, 80, 8192)
    assert [round(value / 1e9, 1) for value in answer.values()] == [35.0, 171.8, 42.9, 25.0, 274.7]


def test_published_answers_stand_beside_ours_where_they_differ() -> None:
    sheet = estimate_gpu_memory(find_shape("llama-2-70b"), MemoryAsk(weights="int4", batch=32, seq_len=2048))
    assert {one.name for one in sheet.differing()} == {"weights_bytes", "kv_bytes", "total_bytes"}
    assert round(sheet["kv_bytes"] / 1e9, 1) == 21.5
    assert 35e9 < sheet["weights_bytes"] < 39e9


def test_windows_bound_a_sequence_and_mixed_ones_do_not() -> None:
    windowed = find_shape("mistral-7b", ["sliding_window=4096"])
    short, long = (estimate_kv(windowed, KvAsk(seq_len=n))["sequence_bytes"] for n in (20_000, 32_000))
    assert short == long == ((4096 + 2048) // 16 + 2) * 16 * 131_072
    fields = ["use_sliding_window=true", "sliding_window=4096", "max_window_layers=18"]
    mixed = find_shape("qwen3-8b", fields)
    assert estimate_kv(mixed, KvAsk(seq_len=32_000))["sequence_bytes"] == 32_000 * 147_456
    every_second = estimate_kv(find_shape("gpt-oss-20b"), KvAsk(seq_len=131_072))["sequence_bytes"]
    assert every_second == 24 * 131_072 * 2048


def test_mixed_windows_on_a_cpu_take_what_the_engine_counts() -> None:
    step = KvAsk(on_cpu=True).scheduler().token_budget
    every_fifth = ["use_sliding_window=true", "sliding_window=1024", "max_window_layers=7"]
    for name, fields in (("gpt-oss-20b", []), ("qwen3-8b", every_fifth)):
        shape, ask = find_shape(name, fields), KvAsk(on_cpu=True, seq_len=65_536)
        groups = group_layers(shape.windows)
        assert groups is not None
        window = PartWindow(groups.window, 0, 16, step, groups.num_pages, groups.num_window)
        sheet = estimate_kv(shape, ask)
        page = groups.num_layers * sheet["token_layer_bytes"] * 16
        counted = window.bounded(65_536 // 16) * groups.num_pages * page
        assert sheet["sequence_bytes"] == pytest.approx(counted, rel=0.01)


@given(model=models, tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]))
def test_parallel_devices_hold_the_whole_model_between_them(model: str, tp: int, pp: int) -> None:
    shape, ask = find_shape(model), MemoryAsk(tp=tp, pp=pp, runtime_gb=1)
    sheet = estimate_gpu_memory(shape, ask, A100)
    whole = sheet["weights_bytes"]
    assert whole <= sheet["device_weights_bytes"] * tp * pp * (1 + 1e-9)
    kv = estimate_kv(shape, ask)
    if tp * pp > 1:
        assert kv["sequence_bytes"] / (tp * pp) <= kv["device_sequence_bytes"] <= kv["sequence_bytes"]
    if shape.latent_size and tp > 1 and pp == 1:
        assert kv["device_sequence_bytes"] == kv["sequence_bytes"]


@given(model=models, batch=st.integers(1, 64), seq_len=st.integers(1, 40_000), more=st.integers(1, 5_000))
def test_more_sequences_and_longer_ones_never_take_less(model: str, batch: int, seq_len: int, more: int) -> None:
    shape, ask = find_shape(model), KvAsk(batch=batch, seq_len=seq_len)
    now = estimate_kv(shape, ask)["kv_bytes"]
    assert estimate_kv(shape, replace(ask, seq_len=seq_len + more))["kv_bytes"] >= now
    assert estimate_kv(shape, replace(ask, batch=batch + 1))["kv_bytes"] > now
    assert estimate_kv(shape, replace(ask, kv_dtype="fp8"))["kv_bytes"] * 2 == now


@pytest.mark.parametrize(
    ("change", "name"),
    [({"batch": 0}, "batch"), ({"seq_len": -1}, "seq_len"), ({"tp": 0}, "tp"), ({"utilization": 1.2}, "utilization"),
     ({"weights": "int3"}, "--weights"), ({"kv_dtype": "int4"}, "--kv-dtype"), ({"batch": 10**19}, "batch"),
     ({"runtime_gb": float("nan")}, "runtime_gb"), ({"on_cpu": True}, "on_cpu")],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(change: dict[str, float], name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        estimate_gpu_memory(find_shape("llama-2-7b"), replace(MemoryAsk(), **change), A100)
    assert caught.value.param == name
    assert name in caught.value.message
