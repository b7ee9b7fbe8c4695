"""Redis and the object store are gone for ten minutes; Redis comes back empty, and a key is made in it."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from stratos.cli.adapters import AdapterTarget, delete_adapter
from stratos.cli.chaos.report import ChaosReport, ChaosRow
from stratos.cli.chaos.streams import StreamResult, StreamRun, differences
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.keyring import create_key
from stratos.cli.local.running import find_platform
from stratos.cli.stores import StoreTarget, run_init
from stratos.common.errors import DependencyDown
from tests.support.chaos.stores import BUCKET, Stores
from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

OUTAGE_S = float(os.environ.get("CHAOS_OUTAGE_S", "600"))
"""How long Redis and the object store are gone."""
REPLICAS = ("--gateways", "3", "--routers", "2", "--prefill", "2", "--decode", "3", "--max-decode", "3")
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(OUTAGE_S + 1200)]


class Drill:
    """A platform whose stores are a test's own, and what its streams must be.

    Args:
        platform: it.
        stores: its Redis and S3.
    """

    def __init__(self, platform: PlatformProcess, stores: Stores) -> None:
        self.platform, self.stores = platform, stores
        self.facts: PlatformFacts = find_platform(platform.data_dir, platform.run_id)
        self.expected: dict[str, StreamResult] = {}
        self.problems: list[str] = []
        self.longest_gap_s = 0.0
        self.num_streams = 0

    def streams(self, name: str) -> None:
        """One round of the mixed streams; the first one is what later ones must equal."""
        models = (self.facts.model, *self.facts.adapters)
        run = StreamRun(self.facts.base_url, self.facts.api_key, f"{name}-{time.monotonic_ns()}", models)

        async def nothing(_: asyncio.Event) -> None:
            return

        asyncio.run(run.run(nothing))
        self.expected = self.expected or run.results
        for stream, got in run.results.items():
            self.problems += [f"{name}: {text}" for text in differences(self.expected[stream], got)]
        self.num_streams += len(run.results)
        self.longest_gap_s = max(self.longest_gap_s, *(result.longest_gap_s for result in run.results.values()))

    def new_key(self) -> str:
        tenant = f"t{time.monotonic_ns()}"
        work = create_key(self.facts, self.platform.data_dir, tenant=tenant, name="drill", plan="local")
        return str(asyncio.run(work))

    def delete_adapter(self) -> None:
        asyncio.run(delete_adapter(AdapterTarget.of(self.facts), name=self.facts.adapters[0], tenant=""))

    def refuses(self, what: str, write: Callable[[], Any], within_s: float = 1.0) -> None:
        """A write fails, and at once."""
        began = time.monotonic()
        try:
            write()
        except DependencyDown:
            if (took_s := time.monotonic() - began) > within_s:
                self.problems.append(f"{what} was refused after {took_s:.1f} s")
        else:
            self.problems.append(f"{what} was taken")

    def is_state(self, state: str) -> bool:
        """Whether the snapshot of every gateway is in a state."""
        gateways = [p for name, p in self.platform.processes().items() if name.startswith("gateway")]
        pages = [httpx.get(f"http://{p['metrics_address']}/metrics", timeout=30).text for p in gateways]
        return all(re.search(rf'stratos_snapshot_state{{state="{state}"}} 1.0', page) for page in pages)

    def status_of(self, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.facts.base_url}/models", headers=headers, timeout=30).status_code

    def row(self, scenario: str, effect: str) -> ChaosRow:
        """For the report."""
        return ChaosRow(
            scenario=scenario,
            streams=self.num_streams,
            different=sum(": other " in problem for problem in self.problems),
            failed=sum(": other " not in problem for problem in self.problems),
            longest_gap_s=round(self.longest_gap_s, 2),
            effect=effect,
            problems=tuple(self.problems),
        )


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    with pytest.MonkeyPatch.context() as patch:
        stores = Stores(tmp_path / "redis", patch)
        stores.start()
        where = (
            "--redis-url",
            stores.redis_url,
            "--object-store",
            f"s3://{BUCKET}/models",
            "--keep-logs",
            "--s3-endpoint",
            stores.s3_url,
        )
        try:
            with running_platform(tmp_path / "data", *REPLICAS, *where, is_executed=True) as platform:
                yield Drill(platform, stores)
        finally:
            stores.close()


def test_redis_and_the_object_store_gone(drill: Drill, report: ChaosReport) -> None:
    for name in ("first", "second", "third"):  # every worker has every adapter then
        drill.streams(name)
    drill.stores.take_away()
    began = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(drill.stores.redis_url).ping()
    with pytest.raises(httpx.ConnectError):
        httpx.get(drill.stores.s3_url)
    wait_until(lambda: drill.is_state("stale"), "the outage is seen")
    num_rounds = 0
    while time.monotonic() - began < OUTAGE_S:
        num_rounds += 1
        drill.streams(f"outage {num_rounds}")
        drill.refuses("a new key", drill.new_key)
        drill.refuses("a deletion", drill.delete_adapter)
    gone_s = time.monotonic() - began
    drill.stores.bring_back()
    wait_until(lambda: drill.is_state("following"), "the stores are followed again")
    key = drill.new_key()
    wait_until(lambda: drill.status_of(key) == httpx.codes.OK, "a key that was made afterwards")
    drill.streams("afterwards")
    report.add(
        drill.row(
            "redis and object store gone", f"refused connections for {gone_s:.0f} s, {num_rounds} rounds of streams"
        )
    )
    assert not drill.problems, drill.problems


def test_redis_back_empty_with_a_strangers_key(drill: Drill, report: ChaosReport, tmp_path: Path) -> None:
    drill.streams("before")
    export = tmp_path / "export.jsonl"
    drill.platform.stratos("admin", "export", str(export))
    drill.stores.bring_back_redis_empty()
    with redis.Redis.from_url(drill.stores.redis_url) as client:
        assert client.dbsize() == 0
        wait_until(lambda: drill.is_state("foreign"), "the loss is seen")
        drill.streams("emptied")
        drill.refuses("a new key", drill.new_key)
        # a new installation is set up in it, by mistake, and a key made there
        (tmp_path / "other").mkdir()
        other = StoreTarget(redis_url=drill.stores.redis_url, object_store_url=f"file://{tmp_path}/other")
        asyncio.run(run_init(other))
        stranger = drill.new_key()
        num_records = client.dbsize()
        assert num_records > 0
    drill.streams("with a stranger")
    if (status := drill.status_of(stranger)) == httpx.codes.OK:
        drill.problems.append(f"the stranger's key was answered with {status}")
    drill.platform.stratos("admin", "adopt-store", "--replace", "--from", str(export))
    wait_until(lambda: drill.is_state("following"), "the store is followed again")
    drill.streams("adopted")
    key = drill.new_key()
    wait_until(lambda: drill.status_of(key) == httpx.codes.OK, "a key that was made afterwards")
    effect = f"0 records after the loss, {num_records} of another store later"
    report.add(drill.row("redis back empty, one key written", effect))
    assert not drill.problems, drill.problems
