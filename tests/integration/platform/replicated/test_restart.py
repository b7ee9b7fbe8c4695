"""A whole platform ends under a batch and begins again over the same data: the batch goes on where it was."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.platform.replicated.conftest import ENV, SIZE
from tests.integration.platform.replicated.test_batches import ask, submit, texts_of
from tests.integration.platform.replicated.test_ledger import client_of, ledger_of
from tests.integration.platform.replicated.test_streams import own_entries_of, until_recorded
from tests.support.waiting import eventually
from tests.support.worlds.platform_process import running_platform

NUM_LINES, NUM_TOKENS = 400, 40
"""Several slices, of which some are finished and some are not when the platform ends."""


async def counts_of(http: httpx.AsyncClient, batch_id: str) -> dict[str, int]:
    found: dict[str, Any] = (await ask(http, "GET", f"/batches/{batch_id}")).json()
    return dict(found["request_counts"])


async def is_under_way(http: httpx.AsyncClient, batch_id: str) -> bool:
    return (await counts_of(http, batch_id))["completed"] > 0


@pytest.mark.slow
async def test_a_batch_outlives_its_platform(tmp_path: Path) -> None:
    """Lines that were answered before are not computed again, none is missing, and each is billed once."""
    start = partial(running_platform, tmp_path, *SIZE, env=ENV)
    with start() as platform:
        async with client_of(platform) as http:
            await until_recorded(http)
            undisturbed = await texts_of(http, await submit(http, NUM_LINES, NUM_TOKENS))
            batch_id = await submit(http, NUM_LINES, NUM_TOKENS)
            await eventually(partial(is_under_way, http, batch_id), "some of its lines are answered")
            before = (await counts_of(http, batch_id))["completed"]
        assert platform.stop() == 0
    with start() as platform:
        async with client_of(platform) as http, ledger_of(platform) as ledger:
            counts = await counts_of(http, batch_id)
            assert before <= counts["completed"] < NUM_LINES, "it goes on, and from there"
            assert await texts_of(http, batch_id) == undisturbed
            assert await counts_of(http, batch_id) == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
            entries = await own_entries_of(ledger, {f"{batch_id}-{number}" for number in range(NUM_LINES)})
            assert len(entries) == NUM_LINES
            assert all(entry.amounts.batch_discount >= entry.amounts.net for entry in entries)
