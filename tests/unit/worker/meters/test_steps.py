"""Steps and tokens are counted once each; the rate is that of the window."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from stratos.core.kv import BlockLedger, KvGeometry, KvIdentity
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.core.requests.records import ChoiceOutput, RequestKey
from stratos.engine.contract.results import FAILED, DraftCount, EngineStatus, StepResult, StepShares
from stratos.engine.contract.runner import RunnerInfo
from stratos.worker.meters.memory import MemoryMeter
from stratos.worker.meters.meters import open_meters
from stratos.worker.meters.operations import OperationMeter
from stratos.worker.meters.settings import WorkerObserveConfig
from stratos.worker.meters.steps import StepMeter

INFO = RunnerInfo(
    identity=KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="r", numerics_id="n"),
    geometry=KvGeometry(num_layers=2, num_kv_heads=2, head_dim=8, block_size=16, element_bytes=4),
    num_blocks=8,
    vocab_size=100,
    max_model_len=128,
    eos_token_ids=(4,),
    step_weight_bytes=1000,
)
ME = WorkerRef(worker_id="decode-0", incarnation="i", address="", role=WorkerRole.DECODE)


def step(num_rows: int, num_tokens: int, num_sampled: int = 0, seconds: float = 0.02) -> StepResult:
    outputs = [ChoiceOutput(RequestKey("r", 0), 0, 0, [7] * num_sampled)] if num_sampled else []
    shares = StepShares(num_tokens=num_tokens)
    return StepResult(step=1, num_rows=num_rows, began_s=1.0, ended_s=1.0 + seconds, outputs=outputs, shares=shares)


def test_every_step_that_computed_is_observed_once() -> None:
    registry = CollectorRegistry()
    meter = StepMeter(registry)
    for result in (step(3, 130, 2), step(3, 3, 3), step(0, 0)):
        meter.on_step(result)
    value = registry.get_sample_value
    assert value("stratos_engine_step_seconds_count") == 2
    assert value("stratos_engine_step_seconds_sum") == 0.04
    assert value("stratos_engine_batch_size_sum") == 6
    assert value("stratos_engine_computed_tokens_total") == 133
    assert value("stratos_engine_output_tokens_total") == 5


def test_drafts_are_counted_by_method_and_place() -> None:
    registry, key = CollectorRegistry(), RequestKey("r", 0)
    meter, result = StepMeter(registry), step(2, 9)
    result.drafts = [
        DraftCount(key=key, method="ngram", num_drafted=3, num_accepted=1, num_cut=2),
        DraftCount(key=key, method="ngram", num_drafted=1, num_accepted=1),
        DraftCount(key=key, method=FAILED),
    ]
    result.draft_cost_s, result.draft_saved_s = 0.25, 0.5
    meter.on_step(result)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"stratos_engine_{name}_total", labels)

    places = [{"method": "ngram", "place": str(place)} for place in (1, 2, 3, 4)]
    assert [value("drafted_tokens", **place) for place in places] == [2, 1, 1, None]
    assert [value("accepted_tokens", **place) for place in places] == [2, None, None, None]
    assert value("cut_tokens", method="ngram") == 2
    assert (value("draft_failures"), value("draft_cost_seconds"), value("draft_saved_seconds")) == (1, 0.25, 0.5)


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    registry = CollectorRegistry()
    meter = StepMeter(registry)

    def rate(now_s: float) -> float:
        meter.show_rate(now_s)
        return registry.get_sample_value("stratos_decode_tokens_per_second") or 0.0

    assert rate(0.0) == 0.0
    for second in range(1, 21):
        meter.on_step(step(1, 1, 5))
        assert rate(float(second)) == 5.0
    assert rate(25.0) == 2.5
    assert rate(40.0) == 0.0


def status(num_steps: int, num_kv_tokens: int) -> EngineStatus:
    return EngineStatus(
        step=num_steps, is_computing=True, blocks=BlockLedger(8, 8, 0, 0, 0, 0), num_waiting=0, num_running=1,
        num_free_batch_slots=1, num_promised_blocks=0, p90_output_tokens=1, kv_watermark=0.9, num_free_adapter_slots=1,
        num_queued_tokens=0, num_prefill_jobs=0, resident_adapters=(), num_kv_tokens=num_kv_tokens,
    )  # fmt: skip


def test_steps_read_weights_and_kv_and_without_a_peak_nothing_is_shown() -> None:
    registry = CollectorRegistry()
    meter = MemoryMeter(registry, INFO, 1e9)
    for seen in (status(5, 10), status(9, 10), status(9, 10)):
        meter.observe(seen)
    expected = 4 * (INFO.step_weight_bytes + 10 * INFO.geometry.token_bytes)
    assert registry.get_sample_value("stratos_memory_read_bytes_total") == expected
    unknown = CollectorRegistry()
    MemoryMeter(unknown, INFO, 0.0).observe(status(5, 10))
    assert list(unknown.collect()) == []


def test_steps_count_operations_of_tokens_and_of_sampled_ones() -> None:
    registry, info = CollectorRegistry(), replace(INFO, token_operations=1000, sampled_operations=10)
    meter = OperationMeter(registry, info, 1e12)
    for result in (step(3, 130, 2), step(3, 3, 3), step(0, 0)):
        meter.on_step(result)
    assert registry.get_sample_value("stratos_engine_operations_total") == 133 * 1000 + 5 * 10
    assert registry.get_sample_value("stratos_engine_peak_operations_per_second") == 1e12
    for unknown in (OperationMeter(CollectorRegistry(), info, 0.0), OperationMeter(CollectorRegistry(), INFO, 1e12)):
        unknown.on_step(step(1, 1, 1))


def test_a_price_is_shown_only_where_one_is_set() -> None:
    registry = CollectorRegistry()
    open_meters(registry, WorkerObserveConfig(), INFO, me=ME, model="base", device="cpu", environ={})
    assert registry.get_sample_value("stratos_device_hour_price", {"role": "decode", "model": "base"}) is None
    about = {"worker": "decode-0", "role": "decode", "model": "base", "model_digest": "m", "device": "cpu"}
    assert registry.get_sample_value("stratos_worker_info", about) == 1
