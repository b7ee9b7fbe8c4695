"""Mixed streams of one model name, each of which must be wholly of one revision, and evidence for its roll-outs."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stratos.cli.chaos.streams import Disturb, StreamResult, StreamRun, differences, lost_records, refused_features
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.integration.platform.models.calls import Admin, client_of
from tests.support.waiting import eventually
from tests.support.worlds.platform_process import PlatformProcess

NUM_TOKENS = 100
LEAST_TELLING = 20
"""Streams that must differ by revision, of 24."""
NUM_COUNTED = 190
"""Requests that a third gateway says it has had of the new revision: real ones must be the rest of 200."""
_runs = itertools.count()


async def nothing(_: asyncio.Event) -> None:
    """Disturbs nothing."""


@dataclass
class Mixed:
    """Belongs to a platform whose tokens tell of which model they are."""

    platform: PlatformProcess
    model: str
    expected: Mapping[str, Mapping[str, StreamResult]] = field(default_factory=dict)
    """Streams of each revision by their number."""
    without: tuple[str, ...] = ()

    async def learn(self, *digests: str) -> None:
        """Ask each revision by its pin, which nothing moves."""
        facts = self.platform.facts()
        self.without = await refused_features(facts["base_url"], facts["api_key"], self.model)
        runs = [self._begin(f"{self.model}@{digest[:12]}", is_recorded=False) for digest in digests]
        await asyncio.gather(*(run.run(nothing) for run in runs))
        assert [one.error for run in runs for one in run.results.values() if one.error] == []
        self.expected = {digest: _by_number(run) for digest, run in zip(digests, runs, strict=True)}
        pairs = list(itertools.combinations(self.expected.values(), 2))
        telling = [n for n in self.expected[digests[0]] if all(one[n].texts != other[n].texts for one, other in pairs)]
        assert len(telling) >= LEAST_TELLING, telling  # a grammar may leave the same tokens to both

    async def run(self, disturb: Callable[[StreamRun, asyncio.Event], Awaitable[None]]) -> Counter[str]:
        """All streams under a disturbance, of which none fails or is of two revisions; returns how many are of each."""
        run = self._begin(self.model, is_recorded=True)
        await run.run(_as_coroutine(partial(disturb, run)))
        assert lost_records(run.results.values()) == []
        found = Counter[str]()
        for number, got in _by_number(run).items():
            problems = {digest: differences(known[number], got) for digest, known in self.expected.items()}
            alike = [digest for digest, texts in problems.items() if not texts]
            assert alike, (got.name, problems)
            found.update(alike if len(alike) == 1 else ())
        return found

    def _begin(self, model: str, *, is_recorded: bool) -> StreamRun:
        facts, name = self.platform.facts(), f"mixed{next(_runs)}"
        return StreamRun(
            facts["base_url"], facts["api_key"], name, [model],
            are_recorded=is_recorded, without=self.without, num_tokens=NUM_TOKENS,
        )  # fmt: skip


async def ask_until(
    admin: Admin, model: str, until: Callable[[dict[str, Any]], bool], num_counted: int = NUM_COUNTED
) -> Counter[int]:
    """Short requests until a roll-out is as it is to be; their statuses. The third gateway counts for each step."""
    platform, statuses = admin.platform, Counter[int]()
    async with client_of(platform) as client, open_redis(platform.facts()["redis_url"]) as redis:
        third = ArmCountStore(redis, RecordStoreConfig(), f"third-{model}")
        while not until(seen := await admin.rollout(model)):
            if seen.get("phase") == "running" and num_counted:
                counts = {seen["old"]: ArmCounts(5000), seen["new"]: ArmCounts(num_counted)}
                await third.put(CountName(model, seen["started_us"], seen["epoch"]), counts)
            body = {"model": model, "prompt": [5, 6], "max_tokens": 1}
            asked = [client.post("/completions", json=body, headers={"connection": "close"}) for _ in range(8)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            statuses.update(0 if isinstance(one, BaseException) else one.status_code for one in answers)
    return statuses


async def until_recorded(platform: PlatformProcess) -> None:
    """Streams of the platform's first tenant have records."""

    async def has_record() -> bool:
        body = {"model": "small", "prompt": [5, 6], "max_tokens": 1, "stream": True}
        async with client_of(platform) as client:
            headers = {"idempotency-key": f"warm-{next(_runs)}"}
            answer = await client.post("/completions", json=body, headers=headers)
        return answer.headers.get("x-stratos-stream", "none") != "none"

    await eventually(has_record, "streams are recorded")


def _by_number(run: StreamRun) -> dict[str, StreamResult]:
    return {name.split("-")[0]: result for name, result in run.results.items()}


def _as_coroutine(work: Callable[[asyncio.Event], Awaitable[None]]) -> Disturb:
    async def disturb(in_effect: asyncio.Event) -> None:
        await work(in_effect)

    return disturb
