"""Streams that leave a worker with drafts for one without, and come back: neither tokens nor bills change."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.integration.platform.real.test_speculation import CODE, SCHEMA
from tests.integration.platform.replicated.test_ledger import Ledger, client_of, entries_of, ledger_of
from tests.support.waiting import eventually
from tests.support.worlds.mixed_fleet import Told, attempts_of, live_workers, moved_between, num_drafted, other_worker
from tests.support.worlds.platform_process import PlatformProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # rounds, as many as it takes
EDIT = CODE + "def get(self, name):\n    return"
NUM_TOKENS = 500
FORM = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
COMMON = {"model": "base", "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True,
          "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "logprobs": 1},
    "two": {"temperature": 0.4, "seed": 5, "n": 2, "max_tokens": NUM_TOKENS // 2},
    "penalised": {"temperature": 0, "frequency_penalty": 0.05},
    "schema": {"temperature": 0.9, "seed": 2, "response_format": FORM, "ignore_eos": False},
}


def streams_of(title: str, **more: str) -> list[Told]:
    """One of each kind; what a title begins with is in no cache, so a router spreads them."""
    common = {**COMMON, "prompt": f"# {title}\n{EDIT}", **more}
    return [Told("-".join((title, kind, *more.values())), {**common, **fields}) for kind, fields in KINDS.items()]


async def cut(http: httpx.AsyncClient, ledger: Ledger, title: str, fault: Callable[[], Awaitable[None]]) -> list[Told]:
    """Streams of all kinds at once; ``fault`` comes once two of them have tokens. They are as without drafts."""
    streams = streams_of(title)
    running = [asyncio.create_task(stream.run(http)) for stream in streams]
    await eventually(lambda: sum(stream.num_tokens > 20 for stream in streams) > 1, "tokens of some streams")
    await fault()
    await asyncio.gather(*running)
    plain = streams_of(title, speculation="off")
    await asyncio.gather(*(stream.run(http) for stream in plain))
    for wanted, stream in zip(plain, streams, strict=True):
        assert stream.said == wanted.said, stream.name
    entries = await entries_of(ledger, {stream.name for stream in streams})
    billed = {entry.tag.http_request_id: entry.counts.num_output for entry in entries}
    assert billed == {stream.name: stream.usage["completion_tokens"] for stream in streams}
    assert len(entries) == len(streams), "each is billed once"
    return streams


async def have_moved(http: httpx.AsyncClient, streams: list[Told], first: str, second: str) -> bool:
    return any([moved_between(await attempts_of(http, stream.name), first, second) for stream in streams])


async def test_streams_survive_moves_from_and_to_a_worker_without_drafts(real_platform: PlatformProcess) -> None:
    """In rounds, until streams went from the one to the other, and others back, in their middle.

    A worker that has crashed often in a row stays stopped, so none is killed once streams went.
    """
    went = came_back = False
    async with client_of(real_platform) as http, ledger_of(real_platform) as ledger:
        for turn in itertools.count():
            plain, drafted = f"decode-plain-{turn}", list[float]()
            async with other_worker(real_platform, plain, {"method": "off"}) as worker:
                own = (await asyncio.to_thread(real_platform.processes))["decode-0"]
                before = await num_drafted(own["metrics_address"])

                async def kill(own: Any = own, drafted: list[float] = drafted) -> None:
                    drafted.append(await num_drafted(own["metrics_address"]))
                    os.kill(own["pid"], signal.SIGKILL)

                if not went:
                    streams = await cut(http, ledger, f"killed-{turn}", kill)
                    went = drafted[0] > before and await have_moved(http, streams, "decode-0", plain)
                    await eventually(partial(_is_live, real_platform, "decode-0"), "decode-0")
                assert not await num_drafted(worker.metrics_address)
                streams = await cut(http, ledger, f"drained-{turn}", worker.drain)
                came_back = came_back or await have_moved(http, streams, plain, "decode-0")
                assert await worker.popen.ended() == 0
            if went and came_back:
                return


async def _is_live(platform: PlatformProcess, name: str) -> bool:
    return name in await live_workers(platform)
