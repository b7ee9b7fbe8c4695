"""What routers are told of a worker: versions, output by tenant, and room that is promised and not taken."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from stratos.api.worker.v1 import cache_pb2
from stratos.core.cache_changes import CacheChanges
from stratos.core.placement import ServiceTag, new_handoff_id, service_tag_of
from stratos.core.requests.records import ChoiceState
from stratos.worker.cache_servicer import CacheServicer
from stratos.worker.decode.intents import Intents, sum_intents
from stratos.worker.service_marks import MAX_MARKS
from stratos.worker.status import MAX_ROUTERS, PLACING_S, StatusFeed, StatusStream, StatusVersions
from tests.support.worlds.engine_driver import make_request
from tests.support.worlds.fleet_samples import ledger, make_status, with_changes


def test_the_version_moves_with_what_admission_depends_on_and_not_with_steps() -> None:
    versions, status = StatusVersions(), make_status()
    assert versions.number(status).version == 1
    stepped = with_changes(status, step=9, is_computing=True, slow_step_s=0.5)
    numbered = versions.number(stepped)
    assert (numbered.version, numbered.engine.step) == (1, 9)
    assert versions.number(with_changes(status, blocks=ledger(1000, allocated=1))).version == 2
    assert versions.number(dataclasses.replace(status, is_draining=True)).version == 3
    assert versions.number(status).version == 4


async def test_every_router_hears_of_output_once_and_of_active_tenants_alone() -> None:
    feed = StatusFeed()
    feed.count_output("before", 3)
    async with aclosing(feed.changes(10.0)) as first, aclosing(feed.changes(10.0)) as second:
        one, two = await anext(first), await anext(second)
        assert feed.num_watchers == 2
        feed.count_output("a", 2)
        assert one.take_tokens() == {"a": 2}
        feed.count_output("b", 1)
        assert one.take_tokens() == {"b": 1}
        assert one.take_tokens() == {}
        assert two.take_tokens() == {"a": 2, "b": 1}
    assert feed.num_watchers == 0


class Cache:
    """An engine with one block more at each look."""

    last_cache_change = 0

    def status(self) -> Cache:
        self.last_cache_change += 1
        return self

    async def cache_changes(self, after: int | None) -> CacheChanges:
        return CacheChanges(after=after or 0, last=self.last_cache_change)


async def test_who_follows_the_cache_is_no_router_and_nothing_is_kept_for_it() -> None:
    feed, cache = StatusFeed(), cast("Any", Cache())
    servicer = CacheServicer(feed, lambda: cache, "i")
    async with aclosing(feed.changes(10.0)) as statuses, aclosing(_watched(servicer)) as caches:
        one, first = await anext(statuses), await anext(caches)
        assert feed.num_watchers == 1, "routers divide a worker's room by their number"
        feed.count_output("a", 2)
        feed.notify()
        async with asyncio.timeout(5):
            assert (await anext(caches)).after == first.last
        assert one.take_tokens() == {"a": 2}
    assert feed.num_watchers == 0


def _watched(servicer: CacheServicer) -> AsyncGenerator[Any, None]:
    return cast("Any", servicer.WatchCache(cache_pb2.WatchCacheRequest(), None))


def test_an_intent_counts_its_prompt_its_expected_output_and_its_places() -> None:
    new = make_request(range(33), n=3, max_tokens=100)
    back = make_request(
        range(16),
        choices=(
            ChoiceState(index=0, emitted_ids=(1,)),
            ChoiceState(index=1, emitted_ids=(2,), finished=True),
        ),
    )
    assert sum_intents([], 20, 16, 8) == Intents()
    assert sum_intents([new], 20, 16, 8) == Intents(num_blocks=3 + 3 * 2, num_batch_slots=3)
    assert sum_intents([new], 20, 16, 2).num_batch_slots == 2
    assert sum_intents([back], 20, 16, 8) == Intents(num_blocks=1 + 1, num_batch_slots=1)
    rest = dataclasses.replace(back, sampling=dataclasses.replace(back.sampling, max_tokens=100), num_prior_tokens=2)
    assert sum_intents([rest], 20, 16, 8) == Intents(num_blocks=1 + 2, num_batch_slots=1), "it goes on, and is new"


def test_routers_whose_requests_came_of_late_are_named_and_bounded() -> None:
    feed = StatusFeed()
    feed.note_placement("t", new_handoff_id("inc-b"), 0.0)
    feed.note_placement("t", new_handoff_id("inc-a"), 1.0)
    assert feed.placing_routers(1.0) == ("inc-a", "inc-b")
    assert feed.placing_routers(PLACING_S + 0.5) == ("inc-a",)
    assert feed.placing_routers(PLACING_S + 1.5) == ()
    for number in range(2 * MAX_ROUTERS):
        feed.note_placement("t", new_handoff_id(f"inc-{number}"), 10.0)
    feed.note_placement("t", "of an unknown make", 10.0)
    assert len(feed.placing_routers(10.0)) == MAX_ROUTERS


def tagged(router: str, start: float, counter: float, priority_class: int = 2) -> str:
    return new_handoff_id(router, ServiceTag(priority_class, start, counter))


def told(feed: StatusFeed, stream: StatusStream, router: str) -> dict[tuple[str, int], tuple[float, float]]:
    """What the next status of a stream says of tenants' service."""
    marks = feed.told(make_status(), stream, router).service_marks
    return {(mark.tenant, mark.priority_class): (mark.start, mark.counter) for mark in marks}


def test_routers_that_stand_by_hear_once_how_far_tenants_are_by_others() -> None:
    feed = StatusFeed()
    active, standby = feed.open(), feed.open()
    feed.note_placement("a", tagged("inc-a", 10.0, 42.5), 0.0)
    feed.note_placement("b", tagged("inc-a", 30.25, 40.0, 1), 0.0)
    feed.note_placement("a", tagged("inc-a", 5.0, 37.0), 0.0)  # an older one that was longer on its way
    feed.note_placement("c", new_handoff_id("inc-a"), 0.0)  # of a build that says nothing
    assert told(feed, active, "inc-a") == {}
    assert told(feed, standby, "inc-b") == {("a", 2): (10.0, 42.5), ("b", 1): (30.25, 40.0)}
    assert told(feed, standby, "inc-b") == {}
    feed.note_placement("a", tagged("inc-b", 42.5, 50.0), 0.0)
    assert told(feed, standby, "inc-b") == {}
    assert told(feed, active, "inc-a") == {("a", 2): (42.5, 50.0)}
    assert told(feed, feed.open(), "inc-c") == {("a", 2): (42.5, 50.0), ("b", 1): (30.25, 40.0)}, "all, for a new one"


def test_marks_are_bounded_and_the_latest_stay() -> None:
    feed = StatusFeed()
    for number in range(MAX_MARKS + 10):
        feed.note_placement(f"t{number}", tagged("inc-a", 0.0, 1.0), 0.0)
    found = told(feed, feed.open(), "")
    assert len(found) == MAX_MARKS
    assert ("t9", 2) not in found
    assert (f"t{MAX_MARKS + 9}", 2) in found


@pytest.mark.parametrize("text", ["h:2:1.00@r", "h:2:1.00:nan@r", "h:2:-1.00:2.00@r", "h:2:1:2@r", "h:2:1.00:2.00:@r"])
def test_an_id_that_says_no_service_says_nothing(text: str) -> None:
    assert service_tag_of(text) is None
