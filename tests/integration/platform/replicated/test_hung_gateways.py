"""Streams of all dialects while the busiest of three gateways, real processes, stands still for 10 s: clients that come
back have all of it, and each answer is billed once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.integration.platform.replicated.conftest import ENV, SIZE
from tests.integration.platform.replicated.test_streams import check_clients
from tests.support.worlds.platform_process import PlatformProcess, running_platform

STANDSTILL_S = 10.0
PATIENCE_S = 2.0
"""Of a client: shorter than the standstill, so it comes back to another gateway while the first one still stands."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, "--gateways", "3", env=ENV) as running:
        yield running


async def stopped(gateway: psutil.Process) -> None:
    """Longer than its leases last; then it goes on, and believes that it has its streams."""
    gateway.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(STANDSTILL_S)
    finally:
        gateway.send_signal(signal.SIGCONT)


@pytest.mark.slow
async def test_clients_of_a_stopped_gateway_come_back_and_have_all_of_it(platform: PlatformProcess) -> None:
    await check_clients(platform, stopped, patience_s=PATIENCE_S)
