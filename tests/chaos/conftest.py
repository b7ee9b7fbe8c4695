"""One platform for all scenarios, its undisturbed streams, and the report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.chaos.report import ChaosReport
from stratos.cli.chaos.scenario import Streams, undisturbed_streams
from stratos.cli.local.running import find_platform
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
def target(platform: PlatformProcess) -> ChaosTarget:
    made = ChaosTarget(find_platform(platform.data_dir, platform.run_id), platform.data_dir)
    asyncio.run(made.wait_whole())
    return made


@pytest.fixture(scope="session")
def undisturbed(target: ChaosTarget) -> Streams:
    """The streams as they must come out."""
    return asyncio.run(undisturbed_streams(target))
