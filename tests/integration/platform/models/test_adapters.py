"""An adapter's name that is registered again under streams, and goes back: what runs keeps its weights to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path

import httpx

from tests.integration.platform.models.calls import client_of, pids_of, stratos
from tests.integration.platform.models.mixed import until_recorded
from tests.integration.platform.replicated.test_streams import busiest_gateway
from tests.support.reference.adapter_folders import write_adapter
from tests.support.waiting import eventually
from tests.support.worlds.platform_process import PlatformProcess

NUM_STREAMS = 50
NUM_TOKENS = 60
ASK = {"model": "tuned", "prompt": [5, 6], "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}


class Recorded:
    """A stream whose client comes back for the rest when its gateway has gone."""

    def __init__(self, number: int) -> None:
        self.number, self.ids, self.last_id, self.is_over = number, list[int](), "", False
        self.num_cuts = 0

    async def run(self, platform: PlatformProcess) -> None:
        async with client_of(platform) as client:
            while not self.is_over:
                try:
                    await self._follow(client)
                except httpx.HTTPError:
                    self.num_cuts += 1

    async def _follow(self, client: httpx.AsyncClient) -> None:
        headers = {"idempotency-key": f"adapter-{self.number}", "connection": "close"}
        headers |= {"last-event-id": self.last_id} if self.last_id else {}
        async with client.stream("POST", "/completions", json={**ASK, "stream": True}, headers=headers) as answer:
            if answer.status_code == 503:  # the gateway that was killed still has it
                return
            assert answer.status_code == 200, (await answer.aread()).decode()
            event_id = ""
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line == "data: [DONE]":
                    self.is_over = True
                elif line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if event.get("error", {}).get("code") == "stream_moved":
                        return
                    assert "error" not in event, event
                    self.ids += [token for choice in event["choices"] for token in choice["token_ids"]]
                    self.last_id = event_id


async def test_streams_keep_an_adapters_weights_through_a_new_version_a_killed_worker_a_killed_gateway_and_a_rollback(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    folders = [write_adapter(tmp_path / str(fill), fill=fill) for fill in (1, 2)]
    await stratos(platform, "adapters", "register", "tuned", str(folders[0]))
    await until_recorded(platform)
    old = await ids_now(platform)
    streams = [Recorded(number) for number in range(NUM_STREAMS)]
    tasks = [asyncio.create_task(stream.run(platform)) for stream in streams]
    await eventually(lambda: sum(len(s.ids) > 0 for s in streams) > NUM_STREAMS // 4, "streams of the old weights")
    await stratos(platform, "adapters", "register", "tuned", str(folders[1]))
    await eventually(partial(_is_other, platform, old[:1]), "new requests get the new weights")
    pids = await pids_of(platform)
    os.kill(pids["decode-0"], signal.SIGKILL)
    await eventually(partial(_is_restarted, platform, pids), "its worker is back")
    (await asyncio.to_thread(busiest_gateway, platform)).kill()
    await asyncio.gather(*tasks)
    assert [stream.number for stream in streams if stream.ids != old] == []
    assert any(stream.num_cuts for stream in streams)
    new = await ids_now(platform)
    assert new[0] != old[0]
    assert "before: " in await stratos(platform, "adapters", "list")
    await stratos(platform, "adapters", "rollback", "tuned")
    await eventually(partial(_is_other, platform, new[:1]), "the name has gone back")
    assert await ids_now(platform) == old
    await stratos(platform, "adapters", "delete", "tuned")


async def ids_now(platform: PlatformProcess) -> list[int]:
    """What the name answers now."""
    found: list[list[int]] = []

    async def is_answered() -> bool:
        async with client_of(platform) as client:
            answer = await client.post("/completions", json=ASK, headers={"connection": "close"})
        if answer.status_code == 200:
            found.append(answer.json()["choices"][0]["token_ids"])
        return bool(found)

    await eventually(is_answered, "the adapter answers")
    return found[0]


async def _is_other(platform: PlatformProcess, before: list[int]) -> bool:
    """Whether each gateway has followed the name to other weights: both take connections of one port."""
    async with client_of(platform) as client:
        asked = [
            client.post("/completions", json={**ASK, "max_tokens": 1}, headers={"connection": "close"})
            for _ in range(8)
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    found = [a.json()["choices"][0]["token_ids"] for a in answers if isinstance(a, httpx.Response) and a.is_success]
    return bool(found) and before not in found


async def _is_restarted(platform: PlatformProcess, pids: dict[str, int]) -> bool:
    found = await asyncio.to_thread(platform.processes)
    worker = found.get("decode-0", {})
    return worker.get("state") == "serving" and worker["pid"] != pids["decode-0"]
