"""A call at the external endpoint whose gateway is killed: what it took until then is billed once, with a receipt."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.platform.priced.test_money import PRICE, ask, slot_taken
from tests.support.waiting import eventually
from tests.support.worlds.money_platform import EXTERNAL_PRICE, GATEWAYS, HELD, MoneyPlatform

pytestmark = pytest.mark.slow
NAME = "taken-over"


def entries(platform: MoneyPlatform) -> list[dict[str, Any]]:
    query = {"tenant": "wanderer", "day": f"{datetime.now(UTC):%Y-%m-%d}"}
    found = platform.admin.get("/ledger", params=query).json()["data"]
    return [entry for entry in found if entry["http_request_id"] == NAME]


async def test_an_external_call_of_a_killed_gateway_is_billed_once(platform: MoneyPlatform) -> None:
    """Its client gets one body at the end, so nothing of it; the endpoint has said one piece, and is paid for it."""
    body = {"model": "base", "prompt": HELD, "max_tokens": 30}
    calls_before = len(platform.external_calls())
    async with slot_taken(platform), platform.client("wanderer") as http:
        call = asyncio.create_task(http.post("/completions", json=body, headers={"x-request-id": NAME}))
        [before] = await billed(platform)
        processes = await asyncio.to_thread(platform.process.processes)
        for gateway in GATEWAYS:
            psutil.Process(processes[gateway]["pid"]).kill()
        with pytest.raises(httpx.HTTPError):
            await call
    num_calls = len(platform.external_calls()) - calls_before
    assert [num_calls, before["outcome"], before["output_tokens"]] == [1, "recovered", 1]
    num_prompt = before["prompt_tokens"]
    cost = num_prompt * EXTERNAL_PRICE["prompt"] + EXTERNAL_PRICE["output"]
    assert before["external_cost"] == cost // 1_000_000
    assert before["due"] == (num_prompt * PRICE["prompt"] + PRICE["output"]) // 1_000_000

    async with platform.client("wanderer") as http:
        told = await receipt(http)
        await until_served(http)  # a gateway that starts reads what is left of the one before
    assert [told["source"], [entry["request_id"] for entry in told["billed"]]] == ["external", [before["request_id"]]]
    [after] = await asyncio.to_thread(entries, platform)
    assert {name: after[name] for name in ("due", "external_cost")} == {n: before[n] for n in ("due", "external_cost")}


async def billed(platform: MoneyPlatform) -> list[dict[str, Any]]:
    """Entries of the call, once there is one."""

    async def is_there() -> bool:
        return bool(await asyncio.to_thread(entries, platform))

    await eventually(is_there, "the call is in the ledger while it runs", poll_s=0.05)
    return await asyncio.to_thread(entries, platform)


async def receipt(http: httpx.AsyncClient) -> dict[str, Any]:
    """The receipt, at a gateway that is there again."""
    told: dict[str, Any] = {}

    async def is_there() -> bool:
        try:
            answer = await http.get(f"/requests/{NAME}/receipt")
        except httpx.HTTPError:
            return False
        told.update(answer.json() if answer.status_code == 200 else {})
        return bool(told)

    await eventually(is_there, "its receipt is there", poll_s=0.05)
    return told


async def until_served(http: httpx.AsyncClient) -> None:
    async def is_served() -> bool:
        try:
            return (await ask(http, [1, 2])).status_code == 200
        except httpx.HTTPError:
            return False

    await eventually(is_served, "requests are served again", poll_s=0.05)
