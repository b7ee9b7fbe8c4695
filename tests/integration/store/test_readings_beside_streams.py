"""What a tenant's question about its usage takes of the event loop: short turns, however many keys and days it has.

A turn is measured in processor time of the loop's thread, so another process on the machine is no part of it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from datetime import date, timedelta
from typing import Any

import pytest
import redis

from stratos.core.ledger.entry import GROUP_SEPARATOR
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis

NUM_KEYS, NUM_DAYS, TURN_S = 1000, 6, 0.01
MEASURES = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "device_us", "gross", "promises")
DAYS = [str(date(2026, 1, 1) + timedelta(days=number)) for number in range(NUM_DAYS)]


class TimedSelector(selectors.DefaultSelector):
    """Knows the longest turn of the loop, in processor time of its thread."""

    since_s: float | None = None
    longest_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.since_s is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self.since_s)
        ready = super().select(timeout)
        self.since_s = time.thread_time()
        return ready


def fill(url: str, prefix: str) -> None:
    with redis.Redis.from_url(url) as connection:
        for day in DAYS:
            names = (GROUP_SEPARATOR.join(("base", "", f"k{n:04}", name)) for n in range(NUM_KEYS) for name in MEASURES)
            connection.hset(f"{prefix}:ledger:sums:acme:{day}", mapping=dict.fromkeys(names, 7))


@pytest.mark.parametrize("columns", [(), ("day", "key_id")])
def test_a_question_holds_the_loop_for_no_longer_than_a_turn(redis_url: str, columns: tuple[str, ...]) -> None:
    config, selector = RecordStoreConfig(), TimedSelector()
    fill(redis_url, config.prefix)
    loop = asyncio.SelectorEventLoop(selector)

    async def ask() -> int:
        async with open_redis(redis_url) as connection:
            reader = UsageReader(connection, config)
            await reader.table("acme", DAYS[:1], columns)
            selector.longest_s = 0.0
            return len(await reader.table("acme", DAYS, columns))

    try:
        assert loop.run_until_complete(ask()) == (NUM_DAYS * NUM_KEYS if columns else 1)
    finally:
        loop.close()
    assert selector.longest_s < TURN_S
