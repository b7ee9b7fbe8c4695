"""A request asks the disk once, and waits no longer than is promised."""

import asyncio

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.core.requests.terms import RequestTerms
from stratos.engine.settings import DiskTierConfig
from stratos.worker import kv_loads
from stratos.worker.kv_loads import KvLoads
from stratos.worker.metrics import WorkerMetrics

TERMS = RequestTerms(tenant="t", kv_key=b"k" * 32)


class Disk:
    """Engine of which only the disk is asked."""

    def __init__(self, hangs=False):
        self.hangs, self.num_asked = hangs, 0

    async def load_blocks(self, token_ids, terms):
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return 1


def loads(disk, clock, max_bytes=1 << 20):
    registry = CollectorRegistry()
    config = DiskTierConfig(max_bytes=max_bytes, load_timeout_s=0.01)
    return KvLoads(disk, config, clock, WorkerMetrics(registry)), registry


async def test_a_disk_that_hangs_is_given_up_and_asked_again_later():
    disk, clock = Disk(hangs=True), FakeClock()
    found, registry = loads(disk, clock)
    for _ in range(3):
        await found.load((1, 2), TERMS)
    assert disk.num_asked == 1
    assert registry.get_sample_value("stratos_kv_disk_timeouts_total") == 1
    clock.advance(kv_loads.PAUSE_S)
    disk.hangs = False
    await found.load((1, 2), TERMS)
    await found.load((1, 2), TERMS)
    assert disk.num_asked == 3


async def test_without_a_disk_tier_nothing_is_asked():
    disk = Disk()
    found, _ = loads(disk, FakeClock(), max_bytes=0)
    await found.load((1, 2), TERMS)
    assert disk.num_asked == 0
