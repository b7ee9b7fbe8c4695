"""A spot worker, a real process, killed and drained under a batch: its lines are equal and billed once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import httpx
import pytest

from tests.integration.platform.replicated.conftest import ENV, SIZE, STEP_S
from tests.integration.platform.replicated.test_batches import submit, texts_of
from tests.integration.platform.replicated.test_ledger import body_of, client_of, ledger_of
from tests.integration.platform.replicated.test_streams import own_entries_of, until_recorded
from tests.support.waiting import eventually
from tests.support.worlds.mixed_fleet import OtherWorker, attempts_of, other_worker
from tests.support.worlds.platform_process import PlatformProcess, running_platform

SPOT = {"ENGINE": "fake", "FAKE__STEP_S": str(STEP_S), "IS_SPOT": "true"}
OFF = {"method": "off"}
NUM_LINES, NUM_TOKENS = 8, 80
"""A line takes nearly a second, in which its worker is taken away."""
NUM_CLIENTS = 12
"""At once, before the batch: routers spread them over all workers that they may have."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """In plain text, as the worker that the test starts beside it has no certificate."""
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, env=ENV) as running:
        yield running


async def killed(worker: OtherWorker) -> None:
    worker.popen.kill()


async def noticed(worker: OtherWorker) -> None:
    """It is told to leave, as a cloud tells it, and does."""
    worker.popen.send_signal(signal.SIGTERM)
    assert await worker.popen.ended() == 0


async def num_running(platform: PlatformProcess, name: str) -> int:
    status = await asyncio.to_thread(platform.status)
    return sum(worker["num_running"] for worker in status["workers"] if worker["worker_id"] == name)


async def workers_of(http: httpx.AsyncClient, name: str) -> list[str]:
    """Where a request ran, attempt by attempt."""
    return [attempt["worker"] for generation in await attempts_of(http, name) for attempt in generation["attempts"]]


@pytest.mark.slow
@pytest.mark.parametrize("taken", [killed, noticed])
async def test_a_batch_outlives_its_spot_worker(
    platform: PlatformProcess, taken: Callable[[OtherWorker], Awaitable[None]]
) -> None:
    """Lines that ran there go on elsewhere, from their next token."""
    name = f"decode-spot-{taken.__name__}"
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        await until_recorded(http)
        undisturbed = await texts_of(http, await submit(http, NUM_LINES, NUM_TOKENS))
        async with other_worker(platform, name, OFF, SPOT) as worker:
            clients = [f"{name}-client-{number}" for number in range(NUM_CLIENTS)]
            asked = (http.post("/completions", json=body_of(7, 4), headers={"x-request-id": one}) for one in clients)
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
            batch_id = await submit(http, NUM_LINES, NUM_TOKENS)

            async def has_begun() -> bool:
                return await num_running(platform, name) > 0

            await eventually(has_begun, "lines run there")
            await taken(worker)
            assert await texts_of(http, batch_id) == undisturbed
            lines = [f"{batch_id}-{number}" for number in range(NUM_LINES)]
            ran = await asyncio.gather(*map(partial(workers_of, http), [*lines, *clients]))
            moved = [attempts for attempts in ran[:NUM_LINES] if attempts[0] == name != attempts[-1]]
            assert moved, "lines had begun there"
            assert not any(name in attempts for attempts in ran[NUM_LINES:]), "clients' requests stay off"
            assert len(await own_entries_of(ledger, set(lines))) == NUM_LINES
