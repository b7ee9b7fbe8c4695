"""Two models on real processes: two gateways and two routers serve both, each by workers of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.paths import BASE_MODEL, MODELS
from tests.support.waiting import eventually
from tests.support.worlds.platform_process import PlatformProcess, running_platform

NAMES = ("base", "small")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    models = ("--model", str(BASE_MODEL), "--model", f"small={MODELS / 'draft'}")
    size = ("--prefill", "0", "--decode", "1", "--max-decode", "1", "--gateways", "2", "--routers", "2")
    with running_platform(tmp_path_factory.mktemp("platform"), "--engine", "fake", *models, *size) as running:
        yield running


async def test_each_request_runs_on_a_worker_of_the_model_that_it_names(platform: PlatformProcess) -> None:
    headers = {"authorization": f"Bearer {platform.facts()['api_key']}"}
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=None, trust_env=False) as client:
        listed = (await client.get("/models")).json()["data"]
        assert tuple(entry["id"] for entry in listed if entry["parent"] is None) == NAMES
        assert len({entry["revision"] for entry in listed}) == 2
        workers = {}
        for number in range(6):
            name = NAMES[number % 2]
            answer = await client.post("/completions", json={"model": name, "prompt": [5, 6], "max_tokens": 3})
            assert (answer.status_code, answer.json()["model"]) == (200, name), answer.text
            workers[name] = await worker_of(client, answer.headers["x-request-id"])
        assert workers == {"base": "decode-0", "small": "decode-small-0"}
        refusal = await client.post("/completions", json={"model": "other", "prompt": [5]})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "model_not_found")


async def worker_of(client: httpx.AsyncClient, request_id: str) -> str:
    """The worker that ran a request, as its receipt says."""
    found: list[str] = []

    async def is_there() -> bool:
        answer = await client.get(f"/requests/{request_id}/receipt")
        if answer.status_code == 200:
            found.append(answer.json()["generations"][0]["attempts"][0]["worker"])
        return bool(found)

    await eventually(is_there, "the receipt is written")
    return found[0]
