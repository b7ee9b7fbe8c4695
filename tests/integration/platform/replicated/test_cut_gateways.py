"""Streams of all dialects while the busiest of three gateways, real processes, is cut from Redis, or from routers and
workers, or leaves, and while Redis is away: clients that come back have all of it, and each answer is billed once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence

import psutil
import pytest

from stratos.cli.chaos.faults.fault import Fault
from stratos.core.ledger.entry import LedgerEntry
from tests.integration.platform.replicated.conftest import ENV, SIZE
from tests.integration.platform.replicated.test_streams import Client, check_clients, killed
from tests.support.chaos.places import OneProcess
from tests.support.worlds.platform_process import PlatformProcess, running_platform

pytestmark = pytest.mark.slow
CUT_S = 6.0
"""Three times as long as a lease lasts."""
OFTEN = 60
"""Events after which a client leaves, and comes back to any gateway."""
DRAIN_S = {"long": "60", "short": "0.6"}
"""Streams take three seconds or more."""


@pytest.fixture(scope="module", params=DRAIN_S)
def platform(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[PlatformProcess]:
    size = (*SIZE, "--gateways", "3", "--routers", "2", "--drain-timeout", DRAIN_S[request.param])
    with running_platform(tmp_path_factory.mktemp("platform"), *size, env=ENV) as running:
        yield running


long_drain = pytest.mark.parametrize("platform", ["long"], indirect=True)
short_drain = pytest.mark.parametrize("platform", ["short"], indirect=True)


async def redis_of(platform: PlatformProcess) -> psutil.Process:
    return psutil.Process((await asyncio.to_thread(platform.processes))["redis"]["pid"])


@long_drain
@pytest.mark.parametrize("kind", ["cut-redis", "cut-workers", "partition"])
async def test_clients_of_a_gateway_that_is_cut_off_have_all_of_it(platform: PlatformProcess, kind: str) -> None:
    redis = await redis_of(platform)

    async def cut(gateway: psutil.Process) -> None:
        proof = await Fault(kind, "gateway", lasting_s=CUT_S).strike(
            OneProcess(gateway.pid, redis=redis.pid), asyncio.Event()
        )
        assert proof["sockets"] > 0

    cut.__name__ = kind
    await check_clients(platform, cut, patience_s=2.0, leaves_after=OFTEN)


@long_drain
async def test_clients_of_a_gateway_that_leaves_in_time_are_not_disturbed(platform: PlatformProcess) -> None:
    """Their streams end at it, whatever its peers are doing."""
    left: list[psutil.Process] = []

    async def drained(gateway: psutil.Process) -> None:
        gateway.terminate()
        await asyncio.to_thread(gateway.wait)
        left.append(gateway)

    def is_enough(clients: Sequence[Client], _: Sequence[LedgerEntry]) -> bool:
        assert all(len(client.reads) == 1 for client in clients)
        return bool(left)

    await check_clients(platform, drained, is_enough)


@short_drain
async def test_clients_of_a_gateway_that_has_no_time_to_leave_have_all_of_it(platform: PlatformProcess) -> None:
    async def drained(gateway: psutil.Process) -> None:
        gateway.terminate()

    await check_clients(platform, drained)


@long_drain
async def test_streams_go_on_without_redis_and_what_cannot_be_resumed_says_so(platform: PlatformProcess) -> None:
    """The gateway's clients come back while Redis stands still, and are told to wait."""
    redis = await redis_of(platform)

    async def lonely(gateway: psutil.Process) -> None:
        redis.send_signal(signal.SIGSTOP)
        try:
            await killed(gateway)
            await asyncio.sleep(CUT_S)
        finally:
            redis.send_signal(signal.SIGCONT)

    def is_enough(clients: Sequence[Client], _: Sequence[LedgerEntry]) -> bool:
        gone_on = [client for client in clients if len(client.reads) == 1]
        return bool(gone_on) and any(client.num_refused and len(client.reads) > 1 for client in clients)

    await check_clients(platform, lonely, is_enough)
