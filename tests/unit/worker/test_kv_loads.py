"""A request asks the disk once, and waits no longer than is promised."""

import asyncio
from dataclasses import replace

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.core.requests.terms import RequestTerms
from stratos.engine.settings import DiskTierConfig
from stratos.worker import kv_loads
from stratos.worker.kv_loads import KvLoads
from stratos.worker.metrics import WorkerMetrics
from tests.support.waiting import eventually

TERMS = RequestTerms(tenant="t", kv_key=b"k" * 32)


class Disk:
    """Engine of which only the disk is asked."""

    def __init__(self, hangs=False, worth_s=60.0):
        self.hangs, self.worth_s, self.num_asked, self.num_looks = hangs, worth_s, 0, 0

    async def disk_worth_s(self, token_ids, terms):
        self.num_looks += 1
        return self.worth_s

    async def load_blocks(self, token_ids, terms):
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return 1


def loads(disk, clock, max_bytes=1 << 20, timeout_s=0.01):
    registry = CollectorRegistry()
    config = DiskTierConfig(max_bytes=max_bytes, load_timeout_s=timeout_s)
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
    assert disk.num_looks == 0


async def test_after_a_while_one_request_asks_and_the_others_do_not_wait_for_its_answer():
    disk, clock = Disk(hangs=True), FakeClock()
    found, _ = loads(disk, clock)
    await found.load((1, 2), TERMS)
    clock.advance(kv_loads.PAUSE_S)
    await asyncio.gather(*(found.load((1, 2), TERMS) for _ in range(5)))
    assert disk.num_asked == 2


async def test_a_request_of_which_disk_has_nothing_does_not_wait_for_one_that_reads():
    disk = Disk(hangs=True)
    found, _ = loads(disk, FakeClock(), timeout_s=60)
    reading = [asyncio.create_task(found.load((1, 2), TERMS)) for _ in range(2 * kv_loads.NUM_DISK_THREADS)]
    await eventually(lambda: disk.num_asked == kv_loads.NUM_DISK_THREADS, "all threads to read")
    disk.worth_s = 0
    await asyncio.wait_for(found.load((3, 4), TERMS), 5)
    assert disk.num_looks == len(reading) + 1
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    assert disk.num_asked == kv_loads.NUM_DISK_THREADS


async def test_a_disk_with_much_to_read_is_not_taken_for_one_that_hangs():
    """Requests whose turn does not come are computed; the next one asks again."""
    disk, clock = Disk(hangs=True), FakeClock()
    found, registry = loads(disk, clock, timeout_s=60)
    reading = [asyncio.create_task(found.load((1, 2), TERMS)) for _ in range(kv_loads.NUM_DISK_THREADS)]
    await eventually(lambda: disk.num_asked == kv_loads.NUM_DISK_THREADS, "all threads to read")
    disk.worth_s = 0.01
    await asyncio.wait_for(found.load((1, 2), TERMS), 5)  # computing it is faster
    assert registry.get_sample_value("stratos_kv_disk_timeouts_total") == 1
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    disk.hangs = False
    await found.load((1, 2), TERMS)
    assert disk.num_asked == kv_loads.NUM_DISK_THREADS + 1


async def test_a_request_waits_for_a_disk_for_half_of_its_time_and_then_it_is_computed():
    disk, clock = Disk(hangs=True), FakeClock()
    found, _ = loads(disk, clock, timeout_s=60)
    await asyncio.wait_for(found.load((1, 2), replace(TERMS, deadline_s=clock.now() + 0.02)), 5)
    disk.hangs = False
    await found.load((1, 2), TERMS)
    assert disk.num_asked == 2, "a short deadline says nothing of the disk"
