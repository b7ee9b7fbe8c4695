"""Streams of every kind on a worker that drafts, while it is killed or drained, or their gateway is killed.

They go on at a worker without speculation, or at another gateway; no token changes, each is billed once, and as
without drafts.

A worker of each method joins a platform of two gateways whose own decode worker drafts nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.core.ledger.entry import OWN_RANK, LedgerEntry
from tests.integration.platform.replicated.test_ledger import Ledger, client_of, ledger_of
from tests.integration.platform.replicated.test_streams import busiest, gateways_of, own_entries_of, until_recorded
from tests.support.paths import BASE_MODEL
from tests.support.waiting import LIMIT_S, rounds, while_running
from tests.support.worlds.mixed_fleet import OtherWorker, Told, attempts_of, moved_between, num_drafted, other_worker
from tests.support.worlds.platform_process import PlatformProcess, running_platform
from tests.support.worlds.speculation_matrix import KINDS as MATRIX
from tests.support.worlds.speculation_matrix import SCHEMA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # rounds begin in the first 300
CODE = "def get(self, name):\n    return self.values[name]\n\n\n" * 6
NUM_TOKENS = 240
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "logprobs": 1},
    "seeded": {"temperature": 0.7, "seed": 5, "n": 2, "max_tokens": NUM_TOKENS // 2},
    "penalised": {"temperature": 0.5, "seed": 6, "frequency_penalty": 0.3, "logit_bias": {"95": 2.0}, "min_tokens": 40},
    "stopped": {"temperature": 0, "stop": ["a text that never comes"]},
    "schema": {
        "temperature": 0.9,
        "seed": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}},
        "ignore_eos": False,
    },
    "tools": {
        "temperature": 0.9,
        "seed": 3,
        "ignore_eos": False,
        "structured_outputs": {"grammar": MATRIX["tools"]["grammar"].text},
    },
    "reasoning": {
        "temperature": 1.0,
        "seed": 4,
        "frequency_penalty": 0.3,
        "ignore_eos": False,
        "structured_outputs": {"grammar": MATRIX["reasoning"]["grammar"].text},
    },
    "adapted": {"temperature": 0, "model": "unit-tests"},
    "adapted too": {"temperature": 0.8, "seed": 9, "model": "c-headers"},
}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {},
    "suffix": {},
    "draft": {"model": str(BASE_MODEL.parent / "draft")},
    "self": {},
}
ALL_RUN = {"SCHEDULER__SPECULATION__IS_ADAPTIVE": "false"}
"""All drafts run: what does not pay on this pair would turn itself off."""
PLAIN = "decode-0"
NAMES = (f"decode-drafting-{number}" for number in itertools.count())
"""Of workers, each used once."""
SIZE = ("--gateways", "2", "--decode", "1", "--max-decode", "1", "--speculative-config", '{"method": "off"}')
ENV = {
    "STRATOS_GATEWAY_WATERMARK__KEY": "a key for one tenant's output",
    "STRATOS_GATEWAY_WATERMARK__TENANTS": '["local"]',
    "STRATOS_DECODE_WORKER_USAGE__CLAIM_AFTER_S": "0.5",
    "STRATOS_DECODE_WORKER_USAGE__OFFER_INTERVAL_S": "1",
    "STRATOS_GATEWAY_LEDGER__CLAIM_INTERVAL_S": "0.3",
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, env=ENV) as running:
        yield running


def streams_of(title: str, **more: Any) -> list[Told]:
    """One of each kind; what a title begins with is in no cache, so a router spreads them."""
    common = {"model": "base", "prompt": f"# {title}\n{CODE}", "max_tokens": NUM_TOKENS, "ignore_eos": True,
              "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}  # fmt: skip
    names = [(f"{title}-{kind}".replace(" ", "-"), fields) for kind, fields in KINDS.items()]
    return [Told(name + more.get("speculation", ""), {**common, **fields, **more}) for name, fields in names]


class Cut:
    """Streams that were disturbed, all of them recorded, and what was billed for them."""

    def __init__(self, streams: list[Told], entries: list[LedgerEntry]) -> None:
        self.streams, self.entries = streams, entries

    async def has_moved(self, http: httpx.AsyncClient, first: str) -> bool:
        """One of them began at the worker that drafts and ended at that which does not."""
        generations = [await attempts_of(http, stream.name) for stream in self.streams]
        return any(moved_between(found, first, PLAIN) for found in generations)


async def cut(
    http: httpx.AsyncClient,
    ledger: Ledger,
    title: str,
    fault: Callable[[], Awaitable[None]],
) -> Cut:
    """Streams of all kinds at once, and a fault once some of them have tokens; then the same without drafts."""
    streams = streams_of(title)
    running = [asyncio.create_task(stream.run(http)) for stream in streams]

    def have_begun() -> bool:
        return sum(stream.num_tokens > 10 for stream in streams) > 2

    await while_running(running, have_begun, "tokens of some streams")
    await fault()
    await asyncio.gather(*running)
    plain = streams_of(title, speculation="off")
    await asyncio.gather(*(stream.run(http) for stream in plain))
    for stream, wanted in zip(streams, plain, strict=True):
        assert stream.said == wanted.said, stream.name
    recorded = [stream for stream in streams if stream.is_recorded]  # others may have been computed twice
    at_once = {stream.name for stream in recorded if stream.num_connections == 1}
    entries = await own_entries_of(ledger, {stream.name for stream in recorded}, at_once)
    counts = {entry.tag.http_request_id: (entry.counts.num_prompt, entry.counts.num_output) for entry in entries}
    usages = {stream.name: stream.usage for stream in recorded}
    assert counts == {name: (usage["prompt_tokens"], usage["completion_tokens"]) for name, usage in usages.items()}
    assert len(entries) == len(recorded), "each is billed once"
    return Cut(recorded, entries)


async def kill(worker: OtherWorker) -> None:
    worker.popen.kill()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", [kill, OtherWorker.drain], ids=["kill", "drain"])
async def test_a_worker_without_drafts_goes_on_with_the_streams_of_one_that_drafts(
    platform: PlatformProcess, method: str, fault: Callable[[OtherWorker], Awaitable[None]]
) -> None:
    await until_moved(platform, method, fault, ALL_RUN)


async def test_quantised_streams_go_on_with_quantised_kv(tmp_path: Path) -> None:
    """Weights and KV in int8 at both workers."""
    flags = ("--quantization", "int8", "--kv-cache-dtype", "int8")
    with running_platform(tmp_path, *SIZE, *flags, env=ENV) as platform:
        settings = {"RUNNER__QUANTIZATION": "int8", "RUNNER__KV_DTYPE": "int8"}
        await until_moved(platform, "ngram", kill, ALL_RUN | settings)


async def until_moved(
    platform: PlatformProcess, method: str, fault: Callable[[OtherWorker], Awaitable[None]], env: dict[str, str]
) -> None:
    """In rounds, until a stream was cut in its middle by a worker that had drafted."""
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        for turn in rounds(f"a stream cut in its middle by a worker that drafts by {method}", LIMIT_S):
            drafted: list[int] = []
            async with other_worker(platform, next(NAMES), {"method": method, **METHODS[method]}, env) as worker:

                async def strike(worker: OtherWorker = worker, drafted: list[int] = drafted) -> None:
                    drafted.append(await num_drafted(worker.metrics_address))
                    await fault(worker)

                title = f"{method}-{fault.__name__}-{turn}"
                found = await cut(http, ledger, title, strike)
                if any(drafted) and await found.has_moved(http, worker.name):
                    return


@pytest.mark.parametrize("method", METHODS)
async def test_a_gateway_takes_over_what_a_drafting_worker_decodes(platform: PlatformProcess, method: str) -> None:
    """In rounds, until a stream on that worker was taken over in its middle."""
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        await until_recorded(http)
        async with other_worker(platform, next(NAMES), {"method": method, **METHODS[method]}, ALL_RUN) as worker:
            for turn in rounds(f"a stream of a worker that drafts by {method} taken over in its middle", LIMIT_S):
                await asyncio.to_thread(platform.until_killable, "gateway-")
                gateways = await asyncio.to_thread(gateways_of, platform)

                async def strike(gateways: Any = gateways) -> None:
                    busiest(gateways, platform).kill()

                found = await cut(http, ledger, f"{method}-takeover-{turn}", strike)
                taken = {entry.tag.http_request_id for entry in found.entries if entry.rank > OWN_RANK}
                workers = {s.name: await attempts_of(http, s.name) for s in found.streams if s.name in taken}
                went_there = any(a["worker"] == worker.name for (g,) in workers.values() for a in g["attempts"])
                if went_there and await num_drafted(worker.metrics_address):
                    return
