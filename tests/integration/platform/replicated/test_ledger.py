"""A platform of two gateways, as real processes: what is billed is what clients counted, whatever is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import psutil
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome
from stratos.core.ledger.pricing import TokenCounts
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.waiting import LIMIT_S, eventually, wait_until
from tests.support.worlds.platform_process import PlatformProcess, gone

WORKERS = ("prefill-0", "decode-0", "decode-1")
MOST_BEYOND = 250
"""Tokens of a stream on their way through a gateway on a busy machine: half of what comes while no gateway has it."""


@dataclass
class Call:
    """One request, and what its client counted."""

    name: str
    body: dict[str, Any]
    leaves_after: int | None = None
    """Tokens after which the client leaves."""
    num_received: int = 0
    usage: dict[str, Any] = field(default_factory=dict)

    async def run(self, http: httpx.AsyncClient) -> None:
        headers = {"x-request-id": self.name}
        if not self.body.get("stream"):
            answer = await http.post("/completions", json=self.body, headers=headers)
            assert answer.status_code == 200, answer.text
            self.usage = answer.json()["usage"]
            return
        async with http.stream("POST", "/completions", json=self.body, headers=headers) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                self._take(line)
                if self.leaves_after is not None and self.num_received >= self.leaves_after:
                    return

    def _take(self, line: str) -> None:
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            self.num_received += sum(len(choice.get("token_ids") or []) for choice in event["choices"])
            self.usage = event.get("usage") or self.usage


def body_of(number: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    prompt = [(number * 37 + 11 * place) % 4000 for place in range(40)]
    return {
        "model": "base", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, **more,
    }  # fmt: skip


def streamed(number: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    return body_of(number, max_tokens, stream=True, stream_options={"include_usage": True}, **more)


@asynccontextmanager
async def client_of(platform: PlatformProcess) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {platform.api_key}"}
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=LIMIT_S) as http:
        yield http


@dataclass
class Ledger:
    store: LedgerStore
    reader: UsageReader


@asynccontextmanager
async def ledger_of(platform: PlatformProcess) -> AsyncIterator[Ledger]:
    async with open_redis(platform.facts()["redis_url"]) as connection:
        yield Ledger(LedgerStore(connection, RecordStoreConfig()), UsageReader(connection, RecordStoreConfig()))


async def entries_of(ledger: Ledger, names: set[str]) -> list[LedgerEntry]:
    """All entries of requests with these ids, once each of them has one."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    while True:
        try:
            found = [e for tenant in await ledger.store.tenants() async for e in ledger.reader.entries(tenant, day)]
        except DependencyDown:
            found = []
        own = [entry for entry in found if entry.tag.http_request_id in names]
        if names <= {entry.tag.http_request_id for entry in own}:
            return own
        await asyncio.sleep(0.1)


def check(call: Call, entry: LedgerEntry) -> None:
    """An entry says what its client counted, or lies between what it got and what may have been decoded."""
    counts, most = entry.counts, call.body["max_tokens"] * call.body.get("n", 1)
    if call.leaves_after is not None:
        assert call.num_received <= counts.num_output <= most, call.name
        assert entry.outcome in (RequestOutcome.ABORTED, RequestOutcome.RECOVERED)
        return
    assert counts.num_output == call.usage["completion_tokens"], call.name
    assert counts.num_prompt == call.usage["prompt_tokens"], call.name


def device_seconds(platform: PlatformProcess) -> dict[str, Counter[str]]:
    """By worker: seconds of tenants, of the platform and idle."""
    found: dict[str, Counter[str]] = {}
    processes = platform.processes()
    for name in WORKERS:
        text = httpx.get(f"http://{processes[name]['metrics_address']}/metrics", timeout=LIMIT_S).text
        lines = "".join(line + "\n" for line in text.splitlines() if "stratos_device_seconds" in line)
        found[name] = Counter()
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                if sample.name == "stratos_device_seconds_total":
                    found[name][sample.labels["state"]] += sample.value
    return found


@pytest.mark.slow
async def test_device_seconds_of_tenants_the_platform_and_nothing_are_all_there_are(platform: PlatformProcess) -> None:
    """Device time of tenants is the same in the ledger and at the workers, prompts of a prefill worker included.

    Every worker says with a step how long it was idle, so both looks follow some requests.
    """
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        before, early = await look(platform, http, "before")
        calls = [Call(f"device-{number}", body_of(number, 60)) for number in range(8)]
        await asyncio.gather(*(call.run(http) for call in calls))
        await asyncio.sleep(1.0)  # idle
        after, late = await look(platform, http, "after")
        entries = await entries_of(ledger, {call.name for call in calls} | {f"after-{n}" for n in range(NUM_ROUND)})
    billed_s = sum(entry.stages.device_us for entry in entries) / 1e6
    taken_s = sum(after[name]["tenant"] - before[name]["tenant"] for name in WORKERS)
    assert billed_s == pytest.approx(taken_s, rel=0.01)
    assert taken_s > 60 * 0.01, "at least one worker computed all steps of a request"
    for name in WORKERS:
        spent = after[name] - before[name]
        assert spent["idle"] > 0.9, name
        # each look is of a moment between its first request and its end
        least_s, most_s = late.began_s - early.ended_s, late.ended_s - early.began_s
        assert 0.99 * least_s <= sum(spent.values()) <= 1.01 * most_s, name
    for call, entry in ((c, e) for c in calls for e in entries if e.tag.http_request_id == c.name):
        check(call, entry)


NUM_ROUND = 12
"""Requests after which each worker has made a step."""
NUM_EQUAL = 6
"""Looks at sums that have not changed, a quarter of a second apart, after which nothing is on its way."""


@dataclass(frozen=True)
class Span:
    """When a look began and ended."""

    began_s: float
    ended_s: float


async def look(platform: PlatformProcess, http: httpx.AsyncClient, name: str) -> tuple[dict[str, Counter[str]], Span]:
    """How workers have spent their time, after some requests.

    Workers copy their sums into the metrics every quarter of a second, where a busy machine lets them: some looks with
    equal sums of tenants have all their steps. Those of the platform grow with each look at its health.
    """
    loop = asyncio.get_running_loop()
    base, began_s = 900 if name == "before" else 950, loop.time()
    calls = [Call(f"{name}-{number}", body_of(base + number, 2)) for number in range(NUM_ROUND)]
    await asyncio.gather(*(call.run(http) for call in calls))
    found, num_equal = await asyncio.to_thread(device_seconds, platform), 0
    while num_equal < NUM_EQUAL:
        await asyncio.sleep(0.25)
        again = await asyncio.to_thread(device_seconds, platform)
        is_equal = all(again[name]["tenant"] == found[name]["tenant"] for name in WORKERS)
        found, num_equal = again, num_equal + 1 if is_equal else 0
    return found, Span(began_s, loop.time())


async def test_totals_are_those_of_the_clients_while_workers_are_killed(platform: PlatformProcess) -> None:
    calls = [
        *(Call(f"mix-plain-{number}", body_of(100 + number, 80)) for number in range(3)),
        *(Call(f"mix-stream-{number}", streamed(200 + number, 150)) for number in range(4)),
        *(Call(f"mix-left-{number}", streamed(300 + number, 2000), leaves_after=9) for number in range(3)),
        Call("mix-several", body_of(400, 60, n=2)),
        Call("mix-stop", body_of(500, 80, stop=["e", "a", "o", "t"])),
    ]
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        running = [asyncio.create_task(call.run(http)) for call in calls]
        await asyncio.to_thread(wait_until, lambda: calls[3].num_received > 20, what="tokens of a stream")
        processes = await asyncio.to_thread(platform.processes)
        for name in ("decode-0", "prefill-0", "router-0"):
            os.kill(processes[name]["pid"], signal.SIGKILL)
        await asyncio.gather(*running)
        entries = await entries_of(ledger, {call.name for call in calls})
        by_name = {entry.tag.http_request_id: entry for entry in entries}
        assert len(by_name) == len(entries) == len(calls)
        for call in calls:
            check(call, by_name[call.name])
        await check_sums(ledger)
    await asyncio.to_thread(
        wait_until, lambda: [w["is_live"] for w in platform.status()["workers"]] == [True] * 3, what="all workers"
    )


async def check_sums(ledger: Ledger) -> None:
    """Sums of the store equal those of its entries."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    while True:
        expected: Counter[str] = Counter()
        (tenant,) = await ledger.store.tenants()
        async for entry in ledger.reader.entries(tenant, day):
            expected.update(entry.measures)
        (total,) = (await ledger.reader.table(tenant, [day], ())).values()
        if +total == expected:
            return
        await asyncio.sleep(0.1)


async def until_noted(platform: PlatformProcess, http: httpx.AsyncClient) -> None:
    """Gateways have noted every decode worker, those that they have asked, for the gateways that follow them."""
    statuses = await asyncio.to_thread(lambda: platform.status()["workers"])
    wanted = {worker["incarnation"] for worker in statuses if worker["role"] == "decode"}
    numbers = itertools.count(1000)
    async with ledger_of(platform) as ledger:

        async def is_noted() -> bool:
            await asyncio.gather(*(Call(f"noted-{n}", body_of(n, 5)).run(http) for n in itertools.islice(numbers, 4)))
            return wanted <= {worker.incarnation for worker in await ledger.store.workers()}

        await eventually(is_noted, "every decode worker is noted")


async def check_receipt(http: httpx.AsyncClient, call: Call) -> None:
    """A gateway that never saw the request shows its receipt, with what was billed."""
    told = dict[str, Any]()

    async def is_there() -> bool:
        answer = await http.get(f"/requests/{call.name}/receipt")
        told.update(answer.json() if answer.status_code == 200 else {})
        return bool(told.get("billed"))

    await eventually(is_there, f"the receipt of {call.name} is there")
    [billed] = told["billed"]
    if call.leaves_after is None:
        assert billed["output_tokens"] == call.usage["completion_tokens"]
        assert told["generations"][0]["output_tokens"] == call.usage["completion_tokens"]


@contextmanager
def writes_paused(platform: PlatformProcess) -> Iterator[None]:
    """Inside, Redis takes no write, and says nothing of it."""
    with redis.Redis.from_url(platform.facts()["redis_url"]) as connection:
        connection.execute_command("CLIENT", "PAUSE", "120000", "WRITE")
        try:
            yield
        finally:
            connection.execute_command("CLIENT", "UNPAUSE")


async def test_requests_of_gateways_that_die_before_they_can_write_are_billed_once(platform: PlatformProcess) -> None:
    """Redis takes no write while requests end; both gateways are killed before they notice. Workers have the counts."""
    calls = [Call(f"killed-{number}", streamed(600 + number, 20 + number)) for number in range(6)]
    calls.append(Call("killed-left", streamed(650, 300), leaves_after=9))
    calls.append(Call("killed-stop", streamed(660, 300, stop=["e", "a", "o", "t"])))
    whole, cut = Call("killed-whole", body_of(670, 3000)), Call("killed-cut", streamed(680, 3000))
    async with client_of(platform) as http:
        await asyncio.gather(*(Call(f"warm-{n}", body_of(700 + n, 5)).run(http) for n in range(4)))
        async with ledger_of(platform) as ledger:
            await entries_of(ledger, {f"warm-{n}" for n in range(4)})
        processes = await asyncio.to_thread(platform.processes)
        gateways = [psutil.Process(processes[f"gateway-{n}"]["pid"]) for n in range(2)]
        await until_noted(platform, http)
        with writes_paused(platform):
            waiting = [asyncio.create_task(call.run(http)) for call in (whole, cut)]
            await asyncio.gather(*(call.run(http) for call in calls))
            for gateway in gateways:
                gateway.kill()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(end, httpx.HTTPError) for end in ends), ends
            await asyncio.to_thread(wait_until, lambda: gone(gateways), what="the end of both gateways")
    async with ledger_of(platform) as ledger:
        entries = await entries_of(ledger, {call.name for call in [*calls, whole, cut]})
        by_name = {entry.tag.http_request_id: entry for entry in entries}
        assert len(by_name) == len(entries) == len(calls) + 2
        for call in calls:
            check(call, by_name[call.name])
        assert by_name[whole.name].counts == TokenCounts(), "nothing of it went to its client"
        num_beyond = by_name[cut.name].counts.num_output - cut.num_received
        assert 0 <= num_beyond < MOST_BEYOND, "not what was decoded while another gateway might have gone on"
        assert RequestOutcome.RECOVERED in {entry.outcome for entry in entries}
        await check_sums(ledger)
    async with client_of(platform) as http:
        await asyncio.gather(*(check_receipt(http, call) for call in calls))


@pytest.mark.parametrize("is_redis_slow", [False, True], ids=["at once", "after Redis was slow"])
async def test_vectors_that_clients_got_are_billed_though_their_gateway_is_killed(
    platform: PlatformProcess, is_redis_slow: bool
) -> None:
    """No worker keeps a count of them: they are in the ledger, or on disk, before their client has them."""
    got: dict[str, int] = {}
    names, is_over = itertools.count(), asyncio.Event()

    async def embed(http: httpx.AsyncClient) -> None:
        while not is_over.is_set():
            name = f"vectors-{is_redis_slow}-{next(names)}"
            body = {"model": "base", "input": list(range(1, 2 + len(name)))}
            headers = {"x-request-id": name, "connection": "close"}
            try:
                answer = await http.post("/embeddings", json=body, headers=headers)
            except httpx.HTTPError:
                return
            if answer.status_code == 200:
                got[name] = answer.json()["usage"]["prompt_tokens"]

    async with client_of(platform) as http, ledger_of(platform) as ledger:
        await asyncio.to_thread(platform.until_killable, "gateway-")
        processes = await asyncio.to_thread(platform.processes)
        clients = [asyncio.create_task(embed(http)) for _ in range(6)]
        await eventually(lambda: len(got) >= 12, "both gateways answer")
        with writes_paused(platform) if is_redis_slow else nullcontext():
            num_before = len(got)
            await eventually(lambda: len(got) > num_before + 6 * is_redis_slow, "more have their vectors", poll_s=0.0)
            for number in range(2):
                os.kill(processes[f"gateway-{number}"]["pid"], signal.SIGKILL)
            is_over.set()
            await asyncio.gather(*clients)
        entries = await entries_of(ledger, set(got))
        assert {e.tag.http_request_id: e.counts.num_prompt for e in entries} == got
        assert len(entries) == len(got)
