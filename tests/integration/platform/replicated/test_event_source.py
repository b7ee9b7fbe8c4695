"""The page of ``examples/event_source``: its gateway is killed, and its ``EventSource`` has every character once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.platform.replicated.test_streams import busiest, client_of, gateways_of, until_recorded
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S, rounds, while_running
from tests.support.worlds.event_source import EventSource
from tests.support.worlds.platform_process import PlatformProcess

PROGRAM = ROOT / "examples" / "event_source" / "proxy.py"


@pytest.fixture
def origin(platform: PlatformProcess) -> Iterator[str]:
    """Where the page is."""
    env = {"BASE_URL": platform.base_url, "API_KEY": platform.api_key, "PORT": "0", "TOKENS": "300"}
    with subprocess.Popen([sys.executable, str(PROGRAM)], env={**os.environ, **env}, stdout=subprocess.PIPE) as proxy:
        try:
            yield proxy.stdout.readline().decode().strip()
        finally:
            proxy.kill()


async def story_of(source: EventSource, begun: asyncio.Event) -> str:
    """What the page's script makes of its messages."""
    text = ""
    async for _, message, _ in source.messages():
        begun.set()
        if message == "[DONE]":
            return text
        value = json.loads(message)
        if "error" in value:
            assert value["error"]["code"] == "stream_moved"
        else:
            text += value["choices"][0]["text"]
    raise AssertionError(f"it was refused: {source.statuses[-1]}")


async def test_a_page_of_a_killed_gateway_comes_back_by_itself(platform: PlatformProcess, origin: str) -> None:
    """In rounds, until its stream was cut."""
    async with httpx.AsyncClient(timeout=LIMIT_S) as http:
        assert "new EventSource(" in (await http.get(origin)).text
        async with client_of(platform) as direct:
            await until_recorded(direct)
        for attempt in rounds("a page whose stream was cut"):
            await asyncio.to_thread(platform.until_killable, "gateway-")
            source, again = (EventSource(http, f"{origin}/story?name=page-{attempt}") for _ in range(2))
            begun, gateways = asyncio.Event(), await asyncio.to_thread(gateways_of, platform)
            running = asyncio.create_task(story_of(source, begun))
            await while_running([running], begun.is_set, "the page's first message")
            busiest(gateways, platform).kill()
            text = await running
            assert text == await story_of(again, begun)
            assert source.last_event_id == again.last_event_id
            assert again.num_losses == 0
            if source.num_losses:
                return
