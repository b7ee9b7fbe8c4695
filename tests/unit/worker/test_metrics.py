"""A worker's metrics say what its engine's status says."""

import itertools
import math

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.core.kv import StagingLedger
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.worker.engine_client.device_time import DeviceTime
from stratos.worker.metrics import WorkerMetrics
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms


class Clocked(FakeRunner):
    """A step takes a tenth of a second, or what ``durations`` says."""

    def __init__(self, config, clock):
        super().__init__(config)
        self.clock, self.durations = clock, itertools.repeat(0.1)

    def collect(self, handle):
        self.clock.advance(next(self.durations))
        return super().collect(handle)


@pytest.fixture
def world():
    clock, registry = FakeClock(), CollectorRegistry()
    config = scheduler_config(step_time_budget_ms=1000.0, prefix_cache=False, default_output_tokens=4)
    engine = EngineCore(Clocked(FakeConfig(num_blocks=20, block_size=4), clock), config, clock)
    metrics = WorkerMetrics(registry)

    def sample(name, **labels):
        metrics.observe_status(engine.status(), StagingLedger(0, 0, 0, 0))
        return registry.get_sample_value(name, labels)

    return engine, clock, sample


def make_request(name, prompt, max_tokens, priority_class=0):
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(range(prompt)),
        choices=(ChoiceState(index=0),),
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        seed=0,
        terms=make_terms(priority_class=priority_class),
    )


def test_refusals_count_once_per_wait_and_queues_by_class(world):
    engine, _, sample = world
    engine.add(make_request("runs", 40, 30))
    engine.step()
    engine.add(make_request("waits", 40, 4, priority_class=1))
    engine.add(make_request("behind", 4, 4, priority_class=2))
    for _ in range(5):
        engine.step()
    assert sample("stratos_admission_refusals_total") == 1
    assert [sample("stratos_requests_waiting_by_class", priority_class=str(c)) for c in range(3)] == [0, 1, 1]
    assert engine.reserve(make_request("hand", 40, 4)) is None
    assert sample("stratos_admission_refusals_total") == 2
    while engine.has_work:
        engine.step()
    assert [sample("stratos_requests_waiting_by_class", priority_class=str(c)) for c in range(3)] == [0, 0, 0]
    assert sample("stratos_admission_refusals_total") == 2


def test_cost_error_is_unknown_at_first_and_counts_outliers_in_full(world):
    engine, _, sample = world
    assert math.isnan(sample("stratos_step_cost_error_ratio", quantile="0.5"))
    engine.add(make_request("long", 4, 60))
    while engine.has_work:
        engine.step()
    assert sample("stratos_step_cost_error_ratio", quantile="0.9") < 0.02
    engine.runner.durations = itertools.cycle([0.4, 0.1, 0.1])
    engine.add(make_request("uneven", 4, 30))
    while engine.has_work:
        engine.step()
    assert sample("stratos_step_cost_error_ratio", quantile="0.5") < 0.02
    assert 0.5 < sample("stratos_step_cost_error_ratio", quantile="0.9") < 1


def test_the_ledger_is_recounted_when_the_engine_runs_out_of_work_and_a_lost_block_shows(world):
    engine, clock, sample = world

    def run(name):
        clock.advance(11.0)
        engine.add(make_request(name, 4, 2))
        while engine.has_work:
            engine.step()

    run("first")
    assert sample("stratos_kv_ledger_audits_total", outcome="sound") == 1
    engine.add(make_request("soon", 4, 2))
    while engine.has_work:
        engine.step()
    assert sample("stratos_kv_ledger_audits_total", outcome="sound") == 1, "only every ten seconds"
    engine._blocks._free.pop()
    run("second")
    assert sample("stratos_kv_ledger_audits_total", outcome="broken") == 1


def test_cached_blocks_are_no_use_of_the_pool(world):
    engine, _, sample = world
    engine.add(make_request("runs", 40, 4))
    engine.step()
    blocks = engine.status().blocks
    assert sample("stratos_kv_utilization_ratio", device="cpu") == blocks.allocated / blocks.total > 0
    while engine.has_work:
        engine.step()
    assert sample("stratos_kv_utilization_ratio", device="cpu") == 0


def test_the_time_of_the_device_has_a_bounded_number_of_tenants():
    registry = CollectorRegistry()
    metrics, device_time = WorkerMetrics(registry, max_tenants=2), DeviceTime()
    for seconds in (1, 2):
        device_time.by_tenant.update({f"tenant-{i}": 10**9 for i in range(5)})
        metrics.observe_usage(0, device_time)
        values = {
            tenant: registry.get_sample_value("stratos_device_seconds_total", {"state": "tenant", "tenant": tenant})
            for tenant in ("tenant-0", "tenant-1", "tenant-2", "other")
        }
        assert values == {"tenant-0": seconds, "tenant-1": seconds, "tenant-2": None, "other": 3 * seconds}
