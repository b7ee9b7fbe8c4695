"""A whole platform ends under a batch and begins again over the same data: the batch goes on where it was."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.platform.replicated.conftest import ENV, SIZE
from tests.integration.platform.replicated.test_batches import ask, submit, texts_of
from tests.integration.platform.replicated.test_ledger import client_of, ledger_of
from tests.integration.platform.replicated.test_streams import own_entries_of, until_recorded
from tests.support.waiting import LIMIT_S, eventually, wait_until
from tests.support.worlds.platform_process import PlatformProcess, gone, running_platform

ALL_KINDS = {"gateway", "router", "prefill", "decode", "lora-registry", "autoscaler", "redis"}


def stopped(platform: PlatformProcess) -> None:
    assert platform.stop() == 0


def killed(platform: PlatformProcess) -> None:
    """SIGKILL of its supervisor, its Redis and all services: none of them sees another one end, or says a last word."""
    kinds = {name.rstrip("-0123456789") for name, process in platform.processes().items() if process["pid"]}
    assert kinds >= ALL_KINDS
    processes = [psutil.Process(platform.popen.pid), *platform.children()]
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            process.send_signal(signum)
    assert platform.popen.wait() == -signal.SIGKILL
    wait_until(lambda: gone(processes), "all of them are gone")


async def counts_of(http: httpx.AsyncClient, batch_id: str) -> dict[str, int]:
    found: dict[str, Any] = (await ask(http, "GET", f"/batches/{batch_id}")).json()
    return dict(found["request_counts"])


async def is_under_way(http: httpx.AsyncClient, batch_id: str, num: int) -> bool:
    return (await counts_of(http, batch_id))["completed"] > num


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("end", "num_lines", "num_tokens", "num_before"), [(stopped, 400, 40, 0), (killed, 2000, 12, 500)]
)
async def test_a_batch_outlives_its_platform(
    tmp_path: Path, end: Callable[[PlatformProcess], None], num_lines: int, num_tokens: int, num_before: int
) -> None:
    """Lines that were answered before are not computed again, none is missing, and each is billed once."""
    start = partial(running_platform, tmp_path, *SIZE, "--routers", "2", env=ENV)
    with start() as platform:
        async with client_of(platform) as http:
            await until_recorded(http)
            undisturbed = await texts_of(http, await submit(http, num_lines, num_tokens))
            assert [name for name, _ in undisturbed] == [f"c{number}" for number in range(num_lines)]
            batch_id = await submit(http, num_lines, num_tokens)
            await eventually(partial(is_under_way, http, batch_id, num_before), "some of its lines are answered")
            before = (await counts_of(http, batch_id))["completed"]
        await asyncio.to_thread(end, platform)
    with start() as platform:
        async with client_of(platform) as http, ledger_of(platform) as ledger:
            counts = await counts_of(http, batch_id)
            assert before <= counts["completed"] < num_lines, "it goes on, and from there"
            assert await texts_of(http, batch_id) == undisturbed
            assert await counts_of(http, batch_id) == {"total": num_lines, "completed": num_lines, "failed": 0}
            names = {f"{batch_id}-{number}" for number in range(num_lines)}
            async with asyncio.timeout(LIMIT_S):  # a line that nothing bills is waited for without a bound
                entries = await own_entries_of(ledger, names)
            assert Counter(entry.tag.http_request_id for entry in entries) == Counter(names)
            assert {entry.counts.num_output for entry in entries} == {num_tokens}
            assert all(entry.amounts.batch_discount >= entry.amounts.net for entry in entries)
