"""Who is shown what another gateway generates ends with its own key, and with its own gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, Read, num_submits, read, stream_worlds

PATH = "/v1/completions"
BODY = {"model": "base", "stream": True, "temperature": 1.0, **ASKED[PATH]}


def num_shown(world: AdminWorld) -> float:
    """Requests that were answered from records."""
    return world.service.metrics.get_sample_value("stratos_stream_records_total", {"event": "replayed"}) or 0


def code_of(found: Read) -> str:
    """Code of the error that a stream ends with, or that stands in its place; "" where it is whole."""
    last = found.events[-1].data
    return "" if last == "[DONE]" else str(json.loads(last)["error"]["code"])


async def test_who_follows_a_stream_ends_with_its_key_and_with_its_gateway(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as [one, two]:
        one.worker.step_s = 0.2
        shown = asyncio.create_task(read(one, "POST", PATH, BODY, by="owner", idempotency_key="both"))
        await eventually(lambda: bool(one.worker.submits), "the stream runs at the first gateway")
        followers = [
            asyncio.create_task(read(two, "POST", PATH, BODY, by=by, idempotency_key="both"))
            for by in ("user", "owner")
        ]
        await eventually(lambda: num_shown(two) == len(followers), "both are shown it by the second one")
        path = f"/keys/{two.keys['user'].split('-')[1]}/suspend"
        assert (await one.call("POST", path, {})).status_code == 200
        assert code_of(await followers[0]) == "invalid_api_key"
        assert not followers[1].done(), "another key of the tenant is as good as before"
        two.service.begin_leave()
        await two.service.drain()
        assert code_of(await followers[1]) == "draining"
        assert not shown.done()
        assert num_submits([one, two]) == 1
        shown.cancel()
        await asyncio.gather(shown, return_exceptions=True)
