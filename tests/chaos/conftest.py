"""One platform for all scenarios, its undisturbed streams, and the report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos.report import ChaosReport
from tests.support.chaos.streams import StreamResult, StreamRun
from tests.support.worlds.platform_process import PlatformProcess, running_platform

REPLICAS = ("--gateways", "3", "--routers", "2", "--prefill", "2", "--decode", "3", "--max-decode", "3")


@pytest.fixture(scope="session")
def report() -> ChaosReport:
    """Written to the path in CHAOS_REPORT, if that is set."""
    path = os.environ.get("CHAOS_REPORT")
    return ChaosReport(Path(path) if path else None)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("chaos"), *REPLICAS, is_executed=True) as running:
        yield running


@pytest.fixture(scope="session")
def undisturbed(platform: PlatformProcess) -> dict[str, StreamResult]:
    """The streams as they must come out."""
    run = StreamRun(platform.base_url, platform.api_key, "undisturbed")

    async def nothing(_: asyncio.Event) -> None:
        return

    asyncio.run(run.run(nothing))
    assert not [result.error for result in run.results.values() if result.error]
    return run.results
