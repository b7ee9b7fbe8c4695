"""Streams that leave a worker with drafts for one without, and come back: neither tokens nor bills change."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.integration.platform.real.test_speculation import CODE, SCHEMA
from tests.integration.platform.replicated.test_ledger import Ledger, client_of, entries_of, ledger_of
from tests.support.waiting import eventually
from tests.support.worlds.mixed_fleet import Told, attempts_of, live_workers, moved_between, num_drafted, other_worker
from tests.support.worlds.platform_process import PlatformProcess

pytestmark = pytest.mark.slow
PLAIN = "decode-plain"
EDIT = CODE + "def get(self, name):\n    return"
NUM_TOKENS = 500
FORM = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
COMMON = {"model": "base", "prompt": EDIT, "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True,
          "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "logprobs": 1},
    "two": {"temperature": 0.4, "seed": 5, "n": 2, "max_tokens": NUM_TOKENS // 2},
    "penalised": {"temperature": 0, "frequency_penalty": 0.05},
    "schema": {"temperature": 0.9, "seed": 2, "response_format": FORM, "ignore_eos": False},
}


async def cut(http: httpx.AsyncClient, title: str, fault: Callable[[], Awaitable[None]]) -> list[Told]:
    """Streams of all kinds at once; ``fault`` comes once two of them have tokens."""
    streams = [Told(f"{title}-{kind}", {**COMMON, **fields}) for kind, fields in KINDS.items()]
    running = [asyncio.create_task(stream.run(http)) for stream in streams]
    await eventually(lambda: sum(stream.num_tokens > 20 for stream in streams) > 1, "tokens of some streams")
    await fault()
    await asyncio.gather(*running)
    return streams


async def check(ledger: Ledger, plain: list[Told], streams: list[Told]) -> None:
    for wanted, stream in zip(plain, streams, strict=True):
        assert stream.said == wanted.said, stream.name
    entries = await entries_of(ledger, {stream.name for stream in streams})
    billed = {entry.tag.http_request_id: entry.counts.num_output for entry in entries}
    assert billed == {stream.name: stream.usage["completion_tokens"] for stream in streams}
    assert len(entries) == len(streams), "each is billed once"


async def test_streams_survive_moves_from_and_to_a_worker_without_drafts(real_platform: PlatformProcess) -> None:
    async with client_of(real_platform) as http, ledger_of(real_platform) as ledger:
        plain = [Told(f"plain-{kind}", {**COMMON, **fields, "speculation": "off"}) for kind, fields in KINDS.items()]
        await asyncio.gather(*(stream.run(http) for stream in plain))
        async with other_worker(real_platform, PLAIN, {"method": "off"}) as worker:
            own = (await asyncio.to_thread(real_platform.processes))["decode-0"]
            before = await num_drafted(own["metrics_address"])

            async def has_drafted() -> bool:
                return await num_drafted(own["metrics_address"]) > before

            async def kill() -> None:
                await eventually(has_drafted, "drafts of decode-0, which counts them a quarter of a second later")
                os.kill(own["pid"], signal.SIGKILL)

            streams = await cut(http, "killed", kill)
            moved = [moved_between(await attempts_of(http, s.name), "decode-0", PLAIN) for s in streams]
            assert any(moved), "the prompt is in the cache of decode-0"
            await check(ledger, plain, streams)

            async def is_back() -> bool:
                return "decode-0" in await live_workers(real_platform)

            await eventually(is_back, "decode-0")
            assert not await num_drafted(worker.metrics_address)
            streams = await cut(http, "drained", worker.drain)
            moved = [moved_between(await attempts_of(http, s.name), PLAIN, "decode-0") for s in streams]
            assert any(moved), "the prompt is in the cache of the other one"
            await check(ledger, plain, streams)
            assert await worker.popen.ended() == 0
