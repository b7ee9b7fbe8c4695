"""A decode worker that is short of KV blocks and keeps what it evicts below, where bits flip and files are damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.chaos.report import ChaosReport, ChaosRow
from stratos.cli.chaos.streams import StreamRun, differences
from stratos.cli.local.running import find_platform
from tests.support.worlds.platform_process import running_platform

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
NUM_STREAMS = 16
"""They take some 32 MiB; more of them wait for too long."""
SHORT_OF_BLOCKS = {
    "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": f"{24 << 20}",
    "STRATOS_DECODE_WORKER_RUNNER__HOST_POOL_BYTES": f"{64 << 20}",
    "STRATOS_DECODE_WORKER_RUNNER__MAX_MODEL_LEN": "1024",
    # Where computing is cheaper than copying nothing is kept, and which one is depends on the machine.
    "STRATOS_DECODE_WORKER_SCHEDULER__SWITCHES__SWAP_COSTS": "false",
    "STRATOS_ROUTER_QUEUE__TTL_S": "240",
    "STRATOS_ROUTER_QUEUE__RECOVERY_TTL_S": "240",
    "STRATOS_GATEWAY_REQUESTS__PLACEMENT_TIMEOUT_S": "280",
}


@pytest.mark.parametrize("kind", ["corrupt-tier", "corrupt-disk"])
def test_no_stream_differs_where_kv_is_damaged_at_rest(tmp_path: Path, report: ChaosReport, kind: str) -> None:
    size, env = ("--decode", "1"), SHORT_OF_BLOCKS
    if kind == "corrupt-disk":
        size, env = (*size, "--kv-disk", "1"), env | {"STRATOS_DECODE_WORKER_RUNNER__HOST_POOL_BYTES": f"{6 << 20}"}
    with running_platform(tmp_path, *size, env=env, is_executed=True) as platform:
        target = ChaosTarget(find_platform(platform.data_dir, platform.run_id), platform.data_dir)
        row = asyncio.run(damaged_streams(target, kind))
    report.add(row)
    assert not row.problems, row.problems


async def damaged_streams(target: ChaosTarget, kind: str) -> ChaosRow:
    """The same streams of one tenant twice: the second time much of their prompts lies in host memory, or on disk."""
    await target.wait_whole()
    key, fault, proofs = await target.new_key(), Fault(kind, "decode-0", lasting_s=8.0), list[Any]()
    first, second = (
        StreamRun(target.facts.base_url, key, name, target.models, num_streams=NUM_STREAMS)
        for name in ("first", "second")
    )

    async def nothing(_: asyncio.Event) -> None:
        return

    async def strike() -> None:
        proofs.append(await fault.strike(target, asyncio.Event()))

    await first.run(nothing)
    await asyncio.gather(strike(), second.run(nothing))
    problems = [text for name, got in second.results.items() for text in differences(first.results[name], got)]
    return ChaosRow(
        scenario=str(fault),
        streams=len(second.results),
        different=len({text.split(":")[0] for text in problems if ": other " in text}),
        failed=sum(bool(result.error) for result in second.results.values()),
        longest_gap_s=round(max(result.longest_gap_s for result in second.results.values()), 2),
        effect="; ".join(map(str, proofs)),
        problems=tuple(problems),
    )
