"""A batch beside requests of clients, on two decode workers and two routers that are real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import httpx
import psutil
import pytest

from tests.integration.platform.replicated.test_batches import ask, submit
from tests.integration.platform.replicated.test_ledger import client_of
from tests.support.waiting import eventually, rounds, wait_until
from tests.support.worlds.mixed_fleet import attempts_of
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

CLEAR_FOR_S = 3.0
ENV = {
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.01",
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "8",
    "STRATOS_ROUTER_ADMISSION__CLEAR_FOR_S": str(CLEAR_FOR_S),
}
SIZE = ("--engine", "fake", "--prefill", "0", "--decode", "2", "--max-decode", "2", "--routers", "2")
WORKERS = {"decode-0", "decode-1"}
NUM_LINES, LINE_TOKENS = 4000, 40
NUM_CLIENTS = 20
"""One after the other, once a worker is clear."""
BODY = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, *MTLS, env=ENV) as running:
        yield running


class Beside:
    """Requests of clients that come all the time, and where lines and they run."""

    def __init__(self, platform: PlatformProcess, http: httpx.AsyncClient) -> None:
        self._platform = platform
        self._http = http

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """Ask again and again meanwhile."""

        async def client() -> None:
            while True:
                await self._http.post("/completions", json=BODY)

        asking = asyncio.create_task(client())
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def with_lines(self) -> tuple[set[str], set[str]]:
        """Workers that run more than one client's request, and those that are clear."""
        found = (await asyncio.to_thread(self._platform.status))["workers"]
        busy = {worker["worker_id"] for worker in found if worker["num_running"] > 1}
        return busy, {worker["worker_id"] for worker in found if worker["is_clear"]}

    async def until_clear(self) -> str:
        """The worker that lines have left."""
        found = set[str]()

        async def is_clear() -> bool:
            busy, clear = await self.with_lines()
            found.clear()
            found.update(clear)
            return len(clear) == 1 and busy == WORKERS - clear

        await eventually(is_clear, "lines run at one of the workers alone")
        return found.pop()

    async def clients_ran_at(self, prefix: str) -> tuple[list[str], str]:
        """Workers of clients' requests that came one after the other, and the router that placed the last one."""
        names = [f"{prefix}-{number}" for number in range(NUM_CLIENTS)]
        for name in names:
            answer = await self._http.post("/completions", json=BODY, headers={"x-request-id": name})
            assert answer.status_code == 200, answer.text
        last = [generation["attempts"][-1] for name in names for generation in await attempts_of(self._http, name)]
        return [attempt["worker"] for attempt in last], last[-1]["router"]


def keep_away(platform: PlatformProcess, address: str) -> None:
    """Kill a router as often as it is started again, until it stays stopped: else it takes all calls back in a second.

    One that begins sees statuses alone: it may choose the other worker, and places one request by each of them.
    """
    [name] = [name for name, process in platform.processes().items() if process["address"] == address]

    def is_away() -> bool:
        process = platform.processes()[name]
        if process["state"] == "serving":
            with suppress(psutil.NoSuchProcess):  # it is on its way out
                psutil.Process(process["pid"]).kill()
        return bool(process["state"] == "stopped")

    wait_until(is_away, f"{name} stays stopped")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_lines_leave_one_of_two_workers_while_clients_ask_also_at_another_router(
    platform: PlatformProcess,
) -> None:
    async with client_of(platform) as http:
        world = Beside(platform, http)
        batch_id = await submit(http, NUM_LINES, LINE_TOKENS)

        async def are_both_busy() -> bool:
            busy, clear = await world.with_lines()
            return busy == WORKERS and not clear

        await eventually(are_both_busy, "lines run at both")
        async with world.coming():
            clear = await world.until_clear()
            ran_at, router = await world.clients_ran_at("first")
            assert ran_at == [clear] * NUM_CLIENTS
            await asyncio.to_thread(keep_away, platform, router)
            for number in rounds("the other router places all of them where no line runs"):
                clear = await world.until_clear()
                ran_at, other = await world.clients_ran_at(f"second-{number}")
                assert other != router
                if ran_at == [clear] * NUM_CLIENTS:
                    break
        await eventually(are_both_busy, "lines run at both again")
        await ask(http, "POST", f"/batches/{batch_id}/cancel")
