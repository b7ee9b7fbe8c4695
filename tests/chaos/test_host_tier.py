"""A decode worker that is short of KV blocks and keeps what it evicts in host memory, in which bits flip."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.report import ChaosReport
from stratos.cli.chaos.scenario import ChaosTarget, run_scenario, undisturbed_streams
from stratos.cli.local.running import find_platform
from tests.support.worlds.platform_process import running_platform

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
SHORT_OF_BLOCKS = {
    "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": f"{16 << 20}",
    "STRATOS_DECODE_WORKER_RUNNER__HOST_POOL_BYTES": f"{64 << 20}",
    "STRATOS_DECODE_WORKER_RUNNER__MAX_MODEL_LEN": "1024",
}


def test_no_stream_differs_where_kv_flips_in_host_memory(tmp_path: Path, report: ChaosReport) -> None:
    with running_platform(tmp_path, "--decode", "1", env=SHORT_OF_BLOCKS, is_executed=True) as platform:
        target = ChaosTarget(find_platform(platform.data_dir, platform.run_id), platform.data_dir)
        asyncio.run(target.wait_whole())
        undisturbed = asyncio.run(undisturbed_streams(target))
        row = asyncio.run(run_scenario(target, [Fault("corrupt-tier", "decode-0", lasting_s=8.0)], undisturbed))
    report.add(row)
    assert not row.problems, row.problems
