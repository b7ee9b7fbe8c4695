"""An adapter's name that is registered again under streams, and goes back: what runs keeps its weights to its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import httpx
import pytest

from stratos.cli.chaos.streams import StreamResult, StreamRun, differences, lost_records
from tests.integration.platform.models.calls import client_of, pids_of, stratos
from tests.integration.platform.models.mixed import nothing, until_recorded
from tests.integration.platform.replicated.test_streams import busiest_gateway
from tests.support.reference.adapter_folders import write_adapter
from tests.support.waiting import eventually, rounds
from tests.support.worlds.platform_process import PlatformProcess

NUM_STREAMS = 50
NUM_TOKENS = 80
ASK = {"model": "tuned", "prompt": [5, 6], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_streams_keep_an_adapters_weights_through_a_new_version_a_killed_worker_a_killed_gateway_and_a_rollback(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    """In rounds, until a stream went on at the other gateway: on a busy machine all may have ended before."""
    folders = [write_adapter(tmp_path / str(fill), fill=fill) for fill in (1, 2)]
    await stratos(platform, "adapters", "register", "tuned", str(folders[0]))
    await until_recorded(platform)
    old = await ids_now(platform)
    of_old, of_new = (streams_of(platform, name, is_recorded=False) for name in ("old", "new"))
    await of_old.run(nothing)
    await stratos(platform, "adapters", "register", "tuned", str(folders[1]))
    await eventually(partial(_is_other, platform, old), "the name stands for the new weights")
    await of_new.run(nothing)
    new = await ids_now(platform)
    telling = [name for name, expected in of_old.results.items() if differences(expected, of_new.results[name])]
    assert len(telling) > NUM_STREAMS // 2, "what a schema leaves open may be the same for both"
    await stratos(platform, "adapters", "rollback", "tuned")
    await eventually(partial(_is_other, platform, new), "it stands for the old ones again")
    for number in rounds("a stream that went on at the other gateway"):
        for killed in ("gateway-", "decode-0"):
            await asyncio.to_thread(platform.until_killable, killed)
        run = streams_of(platform, f"adapters{number}", is_recorded=True)
        await run.run(partial(_replace_under, platform, run.results, folders[1]))
        for name, got in run.results.items():
            # One that lost its gateway and has no record is a new request: of the new weights, once these are known.
            ways = [of_old, of_new] if got.num_begun_anew else [of_old]
            assert [] in [differences(way.results[name], got) for way in ways], name
        assert lost_records(run.results.values()) == []
        await eventually(partial(_is_other, platform, old), "new requests get the new weights")
        assert await ids_now(platform) == new
        assert "before: " in await stratos(platform, "adapters", "list")
        await stratos(platform, "adapters", "rollback", "tuned")
        await eventually(partial(_is_other, platform, new), "the name has gone back")
        assert await ids_now(platform) == old != new
        if any(result.num_resumed for result in run.results.values()):
            break
    await stratos(platform, "adapters", "delete", "tuned")


def streams_of(platform: PlatformProcess, name: str, *, is_recorded: bool) -> StreamRun:
    facts = platform.facts()
    return StreamRun(
        facts["base_url"], facts["api_key"], name, ["tuned"],
        are_recorded=is_recorded, num_streams=NUM_STREAMS, num_tokens=NUM_TOKENS,
    )  # fmt: skip


async def _replace_under(
    platform: PlatformProcess, results: Mapping[str, StreamResult], folder: Path, in_effect: asyncio.Event
) -> None:
    """Register another version once all streams have begun, and kill the worker and a gateway of theirs."""
    in_effect.set()
    await eventually(lambda: all(result.times or result.error for result in results.values()), "all have begun")
    await stratos(platform, "adapters", "register", "tuned", str(folder))
    (await asyncio.to_thread(busiest_gateway, platform)).kill()
    os.kill((await pids_of(platform))["decode-0"], signal.SIGKILL)


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
        asked = [client.post("/completions", json=ASK, headers={"connection": "close"}) for _ in range(8)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    found = [a.json()["choices"][0]["token_ids"] for a in answers if isinstance(a, httpx.Response) and a.is_success]
    return bool(found) and before not in found
