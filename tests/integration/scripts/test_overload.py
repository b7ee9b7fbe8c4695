"""The benchmark of an overload, for some seconds and over a gateway with few places."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.overload import ENV, MAX_NUM_SEQS, OverloadSpec, run_overload
from tests.support.worlds.platform_process import running_platform

SPEC = OverloadSpec(peak_s=1.0, over_s=2.0, settle_s=1.0, under_s=2.0)
SIZE = ("--engine", "fake", "--prefill", "0", "--decode", "2", "--max-decode", "2")


@pytest.mark.slow
async def test_an_overload_is_refused_at_once_with_its_reason_and_leaves_nothing_behind(tmp_path: Path) -> None:
    env = {**ENV, "STRATOS_GATEWAY_REQUESTS__MAX_OPEN": str(4 * MAX_NUM_SEQS)}
    with running_platform(tmp_path, *SIZE, env=env) as platform:
        found = await run_overload(platform.base_url, platform.api_key, SPEC)
    assert set(found["statuses"]) <= {"200", "503"}, found
    refusals = found["refusals"]
    assert refusals["count"] > 0, found
    assert set(refusals["by_reason"]) == {"queue_full"}
    assert found["statuses"]["503"] >= refusals["count"]
    assert found["after_of_offered"] > 0, "it answers again"
