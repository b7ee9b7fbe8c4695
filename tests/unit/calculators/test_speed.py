"""Speed by formula: anchors of a roofline, batches within their bounds, what can only grow, Little's law."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.calculators.hardware.devices import DeviceSpec, devices, find_device
from stratos.calculators.models.known import find_shape
from stratos.calculators.published import published_batch_size
from stratos.calculators.sheet import Sheet
from stratos.calculators.speed.batch import optimal_batch_size
from stratos.calculators.speed.choice import GpuAsk, choose_devices
from stratos.calculators.speed.replicas import ReplicasAsk, plan_replicas
from stratos.calculators.speed.roofline import Roofline, ServingAsk
from stratos.common.errors import BadRequest
from tests.support.paths import ROOT

COPY_RATE = find_device("h200", bandwidth_gb_s=4300, tflops=790)
"""An H200 at the rates that were measured on one."""
AT_1K = ServingAsk(prompt_tokens=1023, output_tokens=2, mbu=1, mfu=1)
"""Decoding at 1,024 tokens of context, at the roof."""


@pytest.mark.parametrize(
    ("model", "rows", "step_ms"),
    [("llama-3.1-8b", 1, 3.52), ("llama-3.1-8b", 64, 5.49), ("llama-3.1-8b", 256, 11.48),
     ("llama-2-13b", 1, 6.17), ("llama-2-13b", 32, 12.22), ("llama-2-13b", 128, 30.95)],
)  # fmt: skip
def test_steps_at_the_roof_are_those_of_the_anchors(model: str, rows: int, step_ms: float) -> None:
    assert Roofline(find_shape(model), COPY_RATE, AT_1K).step_ms(rows) == pytest.approx(step_ms, abs=0.006)


@pytest.mark.parametrize(
    ("model", "tokens", "prompt_ms"),
    [("llama-3.1-8b", 1024, 18.4), ("llama-3.1-8b", 8192, 167), ("llama-3.1-8b", 128, 3.5),
     ("llama-2-13b", 1024, 33.4), ("llama-2-13b", 4096, 140)],
)  # fmt: skip
def test_prompts_at_the_roof_are_those_of_the_anchors(model: str, tokens: int, prompt_ms: float) -> None:
    roof = Roofline(find_shape(model), COPY_RATE, replace(AT_1K, prompt_tokens=tokens))
    assert roof.prompt()[-1].value == pytest.approx(prompt_ms, rel=0.01)


def test_a_7b_model_alone_decodes_at_the_bandwidth() -> None:
    """Claim 3.2: 14 GB over 3.35 TB/s are 4.2 ms, 238 tokens/s."""
    roof = Roofline(find_shape("llama-2-7b"), devices()["h100"], replace(AT_1K, prompt_tokens=1))
    assert 3.9 < roof.step_ms(1) < 4.2


def test_the_published_code_returns_what_it_is_known_to_return() -> None:
    """Claim 4.3: 5 with 64 heads of KV, 46 with 8."""
    assert published_batch_size(80, 35, 2048, 80, 8192) == 5
    assert published_batch_size(80, 35, 2048, 80, 1024) == 46


def best(ask: ServingAsk, device: DeviceSpec = COPY_RATE, model: str = "llama-3.1-8b") -> Sheet:
    return optimal_batch_size(find_shape(model), device, ask)


def test_memory_the_promise_or_the_setting_bounds_a_batch() -> None:
    assert best(ServingAsk(max_num_seqs=10)).notes == ("max_num_seqs decides.",)
    promised = best(ServingAsk(itl_ms=10, max_num_seqs=10_000))
    assert promised.notes == ("itl decides.",)
    assert (
        promised["step_ms"]
        <= 10
        < Roofline(find_shape("llama-3.1-8b"), COPY_RATE, ServingAsk()).step_ms(int(promised["rows"]) + 1)
    )
    assert best(ServingAsk(max_num_seqs=10_000)).notes == ("memory decides.",)


@pytest.mark.parametrize(
    ("ask", "bound"),
    [(ServingAsk(itl_ms=1), "itl"), (ServingAsk(ttft_ms=1), "ttft"), (ServingAsk(prompt_tokens=10**7), "memory")],
)
def test_no_batch_at_all_is_refused_with_what_forbids_it(ask: ServingAsk, bound: str) -> None:
    with pytest.raises(BadRequest, match=f"{bound} forbids"):
        best(ask)


@given(
    model=st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"]),
    rows=st.integers(1, 500),
    prompt=st.integers(1, 20_000),
)
def test_steps_grow_with_the_batch_and_tokens_per_second_never_fall(model: str, rows: int, prompt: int) -> None:
    roof = Roofline(find_shape(model), devices()["h200"], ServingAsk(prompt_tokens=prompt))
    now, more = roof.step_ms(rows), roof.step_ms(rows + 1)
    assert more >= now
    assert (rows + 1) / more >= rows / now * (1 - 1e-12)
    longer = Roofline(find_shape(model), devices()["h200"], ServingAsk(prompt_tokens=prompt + 64))
    assert longer.step_ms(rows) >= now
    assert longer.prompt()[-1].value >= roof.prompt()[-1].value


def test_a_group_shares_weights_and_as_much_of_the_cache_as_it_has_heads() -> None:
    def step_ms(model: str, tp: int, prompt: int) -> float:
        ask = ServingAsk(prompt_tokens=prompt, tp=tp)
        return Roofline(find_shape(model), devices()["h200"], ask).step_ms(64)

    assert step_ms("llama-3.1-8b", 8, 9000) == pytest.approx(step_ms("llama-3.1-8b", 1, 9000) / 8)
    for model, kept in (("llama-3.1-8b", 1 / 8), ("deepseek-v3", 1.0)):  # 8 heads of KV; one latent vector
        of_the_cache = step_ms(model, 16, 90_000) - step_ms(model, 16, 1)
        assert of_the_cache == pytest.approx(kept * (step_ms(model, 1, 90_000) - step_ms(model, 1, 1)))


def test_layers_with_a_state_move_it_and_read_no_kv() -> None:
    fields = {
        "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 128, "intermediate_size": 2048, "vocab_size": 999, "max_position_embeddings": 65_536,
    }  # fmt: skip
    changes = ['architectures=["Qwen3_5ForCausalLM"]', *(f"{name}={value}" for name, value in fields.items())]
    shape = find_shape("", changes)
    assert (shape.state_layers, shape.seen(1000)) == (6, 2000)
    step = {one.name: one.value for one in Roofline(shape, devices()["h100"], AT_1K).step(4)}
    assert step["kv_read_bytes"] == 4 * 2 * 1024 * 2 * 2 * 128 * 2
    assert step["state_moved_bytes"] == 2 * 4 * 6 * shape.state_size * 4
    moved = step["read_bytes"] + step["kv_read_bytes"] + step["state_moved_bytes"]
    assert step["memory_ms"] == pytest.approx(1000 * moved / 3.35e12)


def test_a_measured_sweep_stands_beside() -> None:
    sheet = optimal_batch_size(find_shape("llama-3.1-8b"), COPY_RATE, ServingAsk(), {8: 1500.0, 3: 600.0})
    rows = {row[0]: row[-1] for row in sheet.grids[0].rows}
    assert (rows[8], rows[3], rows[1]) == (1500.0, 600.0, "")


def test_devices_are_enough_and_no_group_is_cheaper() -> None:
    sheet = choose_devices(find_shape("llama-3.1-8b"), GpuAsk(requests_per_s=20, itl_ms=35, ttft_ms=400))
    assert sheet["utilized_share"] <= 0.7
    assert sheet["replicas"] * sheet["requests_per_s"] * 0.7 >= 20
    prices = [row[-1] for row in sheet.grids[0].rows]
    known = [price for price in prices if isinstance(price, float)]
    assert known == sorted(known)
    assert prices[: len(known)] == known
    names = [row[0] for row in sheet.grids[0].rows]
    assert len(names) == len(set(names))


def test_a_load_that_no_device_carries_is_refused() -> None:
    with pytest.raises(BadRequest, match="memory"):
        choose_devices(find_shape("llama-3.1-405b", ["num_hidden_layers=900"]), GpuAsk())


def test_replicas_of_the_published_design() -> None:
    """Claim 2.3: 1,000 users of 30 tokens/s on replicas of 4,000 tokens/s and 4 devices: 8 replicas, 32 devices."""
    users = ReplicasAsk(
        requests_per_day=86400, peak_factor=1, output_tokens=30_000, replica_tokens_per_s=4000, load=1,
        devices_per_replica=4, spare_replicas=0, itl_ms=1000 / 30,
    )  # fmt: skip
    sheet = plan_replicas(users)
    assert (sheet["replicas"], sheet["devices"]) == (8, 32)
    assert sheet["requests_in_flight"] == pytest.approx(1000)


@given(requests=st.floats(1, 1e9), load=st.floats(0.05, 1), tokens=st.floats(10, 1e5))
def test_replicas_carry_the_peak_and_not_one_too_many(requests: float, load: float, tokens: float) -> None:
    sheet = plan_replicas(ReplicasAsk(requests_per_day=requests, load=load, replica_tokens_per_s=tokens))
    needed = sheet["needed_replicas"]
    assert sheet["load_at_peak"] <= load * (1 + 1e-9)
    assert (needed - 1) * tokens * load < sheet["peak_tokens_per_s"] * (1 + 1e-9)


def test_what_a_router_takes_is_what_was_measured() -> None:
    document = json.loads((ROOT / "benchmarks" / "results" / "router-2core-cpu.json").read_text(encoding="utf-8"))
    measured = document["cases"]["kv"]
    ask = ReplicasAsk(
        requests_per_day=86400 * measured["requests_per_s"], peak_factor=1, replica_tokens_per_s=1000, load=1
    )
    assert plan_replicas(ask)["router_cores"] == pytest.approx(sum(measured["cores"].values()), rel=0.02)


@pytest.mark.parametrize(
    ("ask", "name"),
    [(ReplicasAsk(), "replica_tokens_per_s"), (ReplicasAsk(replica_tokens_per_s=1, load=0), "load"),
     (ReplicasAsk(replica_tokens_per_s=1, spare_replicas=-1), "spare_replicas")],
)  # fmt: skip
def test_replicas_refuse_by_name(ask: ReplicasAsk, name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        plan_replicas(ask)
    assert caught.value.param == name


@pytest.mark.parametrize("change", [{"mbu": 0}, {"mfu": 2}, {"itl_ms": -1}, {"output_tokens": 0}, {"tp": 0}])
def test_servings_refuse_by_name(change: dict[str, float]) -> None:
    with pytest.raises(BadRequest) as caught:
        best(replace(ServingAsk(), **change))
    assert caught.value.param == next(iter(change))


def test_a_device_needs_all_figures_or_a_name() -> None:
    assert find_device("", memory_gb=16, bandwidth_gb_s=29, tflops=0.36).memory_bytes == 16 * 10**9
    with pytest.raises(BadRequest, match="h300"):
        find_device("h300")
    with pytest.raises(BadRequest, match="tflops must be above 0"):
        find_device("", memory_gb=16, bandwidth_gb_s=29)
    assert find_device("h100", tflops=1).peak_flops("fp8") == 1e12
    h100 = devices()["h100"]
    assert h100.peak_flops("fp8") == pytest.approx(2 * h100.peak_flops("bfloat16"), rel=1e-3)
    assert all(device.source for device in devices().values())


def test_weights_in_float32_need_a_peak_that_is_given() -> None:
    """Peaks of the table are of tensor cores, which are many times as fast as sums in float32."""
    for calculate in (lambda: best(ServingAsk(weights="float32"), devices()["h100"]),
                      lambda: choose_devices(find_shape("llama-3.1-8b"), GpuAsk(weights="float32"))):  # fmt: skip
        with pytest.raises(BadRequest, match=r"no peak of .* in float32"):
            calculate()
    assert find_device("h100", tflops=67).peak_flops("float32") == 67e12
