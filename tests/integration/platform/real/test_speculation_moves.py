"""Streams that leave a worker with drafts for one without, and come back: neither tokens nor bills change."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.platform.real.test_speculation import CODE, SCHEMA
from tests.integration.platform.replicated.test_ledger import Ledger, client_of, entries_of, ledger_of
from tests.support.waiting import LIMIT_S, eventually, rounds, while_running
from tests.support.worlds.mixed_fleet import (
    OtherWorker,
    Told,
    attempts_of,
    live_workers,
    moved_between,
    num_decoded,
    num_drafted,
    other_worker,
)
from tests.support.worlds.platform_process import PlatformProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # rounds begin in the first 300
EDIT = CODE + "def get(self, name):\n    return"
NUM_TOKENS = 2000
"""Seconds of work: a busy machine shows a client what has come some tenths of a second later."""
OWN = "decode-0"
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


Deed = Callable[[], Awaitable[Any]]


async def cut(http: httpx.AsyncClient, ledger: Ledger, title: str, fault: Deed, is_at_work: Deed) -> list[Told]:
    """Streams of all kinds at once, and ``fault`` once the worker that it meets is at work for some of them.

    Without it where the long ones have ended before. They are as without drafts, and each is billed once.
    """
    *long, _ = streams = streams_of(title)
    running = [asyncio.create_task(stream.run(http)) for stream in streams]

    async def is_time() -> bool:
        are_under_way = any(stream.num_tokens and not stream.has_ended for stream in long)
        return are_under_way and bool(await is_at_work())

    if await while_running(running, is_time, f"work of the worker of {title}"):
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


@dataclass
class Round:
    """One worker without drafts beside the platform's own, which has them."""

    platform: PlatformProcess
    http: httpx.AsyncClient
    ledger: Ledger
    worker: OtherWorker
    turn: int

    async def went(self) -> bool:
        """Streams go on at the other worker when the own one, which has drafted for them, is killed."""
        await asyncio.to_thread(self.platform.until_killable, OWN)
        own = (await asyncio.to_thread(self.platform.processes))[OWN]
        before = await num_drafted(own["metrics_address"])

        async def has_drafted() -> bool:
            return await num_drafted(own["metrics_address"]) > before

        async def kill() -> None:
            os.kill(own["pid"], signal.SIGKILL)

        streams = await cut(self.http, self.ledger, f"killed-{self.turn}", kill, has_drafted)
        await asyncio.to_thread(self.platform.until_killable, OWN)
        await eventually(self._own_is_live, "the own worker is live again", timeout_s=LIMIT_S)
        return await have_moved(self.http, streams, OWN, self.worker.name)

    async def came_back(self) -> bool:
        """Streams go on at the own worker when the other one, which has decoded for them, leaves."""
        before = await num_decoded(self.worker.metrics_address)

        async def has_decoded() -> bool:
            assert not await num_drafted(self.worker.metrics_address)
            return await num_decoded(self.worker.metrics_address) > before

        streams = await cut(self.http, self.ledger, f"drained-{self.turn}", self.worker.drain, has_decoded)
        have_come = await have_moved(self.http, streams, self.worker.name, OWN)
        assert not have_come or await self.worker.popen.ended() == 0
        return have_come

    async def _own_is_live(self) -> bool:
        return OWN in await live_workers(self.platform)


async def test_streams_survive_moves_from_and_to_a_worker_without_drafts(real_platform: PlatformProcess) -> None:
    """In rounds, until streams went from the one to the other, and others back, in their middle."""
    went = came_back = False
    async with client_of(real_platform) as http, ledger_of(real_platform) as ledger:
        for turn in rounds("streams that moved from a worker with drafts to one without, and others back", LIMIT_S):
            async with other_worker(real_platform, f"decode-plain-{turn}", {"method": "off"}) as worker:
                this = Round(real_platform, http, ledger, worker, turn)
                went = went or await this.went()
                came_back = came_back or await this.came_back()
            if went and came_back:
                return
