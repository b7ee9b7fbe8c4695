"""The placement loop without sockets: bookings, refusals, ties, callers that leave."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import Draining, Overloaded, PromptRefused, QueueTimeout
from stratos.core.features import PROTOCOL_VERSION
from stratos.core.kv import BlockLedger
from stratos.core.placement import Outcome
from stratos.core.requests.convictions import Conviction, ConvictionUpdate
from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.dispatch.dispatcher import MAX_EXPIRED
from stratos_router.metrics import VERSION_LABELS
from stratos_router.placement_loop import MAX_PLACED
from tests.support.worlds.fleet_samples import ledger
from tests.support.worlds.router_scheduler import IDENTITY, RouterScheduler


async def test_a_burst_between_two_statuses_is_spread_and_never_exceeds_the_seats() -> None:
    world = RouterScheduler("decode-0", "decode-1", "decode-2")
    calls = [await world.call(request_id=str(index)) for index in range(9)]
    await world.turn()
    placed = Counter(call.result().decode.worker_id for call in calls if call.done())
    assert placed == {"decode-0": 2, "decode-1": 2, "decode-2": 2}
    assert len({call.result().handoff_id for call in calls if call.done()}) == 6
    world.clock.advance(0.1)
    for name in placed:
        world.status(name, num_running=2)
    await world.turn()
    assert sum(call.done() for call in calls) == 6, "the statuses confirm the bookings, they do not add to them"
    await _cancel(calls)


async def test_a_worker_that_was_shown_as_out_is_not_chosen_in_the_same_moment() -> None:
    world = RouterScheduler("decode-0", "decode-1")
    world.clock.advance(1.49)
    world.status("decode-1")
    await world.turn()
    world.clock.advance(0.02)  # less than the time between two looks for silence
    shown = {worker.ref.worker_id: worker.is_live for worker in world.scheduler.fleet().workers}
    call = await world.call()
    await world.turn()
    assert shown == {"decode-0": False, "decode-1": True}
    assert call.result().decode.worker_id == "decode-1"


async def _cancel(calls: list[asyncio.Task[Any]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_an_end_frees_the_seat_before_the_next_status_and_a_new_incarnation_all_of_them() -> None:
    world = RouterScheduler("decode-0")
    first, second, third, fourth = [await world.call(request_id=str(index)) for index in range(4)]
    await world.turn()
    world.clock.advance(0.1)
    world.status("decode-0", num_running=2)
    world.clock.advance(0.03)
    world.scheduler.complete(first.result().handoff_id, Outcome.FINISHED, 10)
    await world.turn()
    assert third.done()
    assert not fourth.done()
    world.status("decode-0", incarnation="another")
    await world.turn()
    assert fourth.result().decode.incarnation == "another"
    assert second.done()
    assert len(world.bookings) == 1


async def test_a_caller_that_leaves_at_any_moment_leaves_nothing_behind() -> None:
    world = RouterScheduler("decode-0")
    waiting = [await world.call(request_id=str(index)) for index in range(3)]
    await world.turn()
    waiting[2].cancel()  # while it waits
    await asyncio.sleep(0)
    assert world.scheduler.fleet().queues == ()
    late = await world.call(request_id="late")
    world.scheduler.complete(waiting[0].result().handoff_id, Outcome.FINISHED, None)
    world.scheduler.turn(world.clock.now())
    late.cancel()  # placed, but it has not heard of it
    await asyncio.gather(late, waiting[2], return_exceptions=True)
    assert late.cancelled()
    assert len(world.bookings) == 1
    assert world.scheduler.num_calls == 0


async def test_refusals_say_why_and_when_to_come_back() -> None:
    world = RouterScheduler(queue={"max_requests": 1, "ttl_s": 3})
    waiting = await world.call()
    with pytest.raises(Overloaded) as refused:
        await (await world.call(request_id="2"))
    assert refused.value.after_s == 0.0, "nothing is known yet: the gateway bounds it"
    await world.turn(2.99)
    assert not waiting.done()
    await world.turn(0.01)
    with pytest.raises(QueueTimeout, match=r"within 3\.0 s"):
        await waiting
    outcomes = {"overloaded": 1, "queue_timeout": 1}
    for outcome, count in outcomes.items():
        labels = {"outcome": outcome, "class": "0"}
        assert world.registry.get_sample_value("stratos_router_placements_total", labels) == count


async def test_refusals_for_memory_pressure_count_as_no_full_queue() -> None:
    world = RouterScheduler("decode-0")
    world.status("decode-0", blocks=ledger(1000, allocated=1000))
    with pytest.raises(Overloaded):
        await (await world.call(priority_class=BATCH_CLASS))
    world.scheduler.show_metrics()
    values = world.registry.get_sample_value
    assert values("stratos_router_placements_total", {"outcome": "memory_pressure", "class": str(BATCH_CLASS)}) == 1
    assert values("stratos_router_placements_total", {"outcome": "overloaded", "class": str(BATCH_CLASS)}) == 0
    assert values("stratos_router_memory_pressure", {"model_digest": "m"}) == 1
    world.fleet.set_members([])
    world.scheduler.show_metrics()
    assert values("stratos_router_memory_pressure", {"model_digest": "m"}) is None


async def test_requests_whose_time_is_over_together_are_answered_in_several_turns() -> None:
    """Thousands of answers in one turn would hold the loop for a tenth of a second."""
    world = RouterScheduler()
    dispatcher, now = world.scheduler.dispatcher, world.clock.now()
    for index in range(3 * MAX_EXPIRED):
        dispatcher.push(world.request(request_id=str(index)), now)
    left = []
    while not world.scheduler.turn(now + 31, MAX_PLACED):
        left.append(sum(queue.num_requests for queue in dispatcher.depths(now)))
    assert left == [2 * MAX_EXPIRED, MAX_EXPIRED, 0]


async def test_retry_after_is_the_longest_wait_while_nothing_moves_and_then_the_queues_pace() -> None:
    world = RouterScheduler("decode-0", queue={"max_requests": 4})
    placed = [await world.call(request_id=f"first-{place}") for place in range(2)]
    await world.turn()
    waiting = [await world.call(request_id=f"next-{place}") for place in range(4)]
    world.clock.advance(15)  # what was placed is too long ago to say anything
    world.status("decode-0", num_running=2)
    with pytest.raises(Overloaded) as refused:
        await (await world.call(request_id="refused"))
    assert refused.value.after_s == pytest.approx(15, abs=0.1)
    for call in placed:
        world.scheduler.complete(call.result().handoff_id, Outcome.FINISHED, None)
        world.clock.advance(1.99)
        world.status("decode-0", num_running=1)
        await world.turn()
    waiting += [await world.call(request_id=f"last-{place}") for place in range(2)]
    with pytest.raises(Overloaded) as refused:
        await (await world.call(request_id="refused again"))
    assert refused.value.after_s == pytest.approx(4 * 2 / 2, abs=0.1), "four wait, and two went in the last 2 s"
    await _cancel(waiting)


async def test_a_flooding_tenant_is_displaced_by_one_with_less() -> None:
    world = RouterScheduler(queue={"max_requests": 2})
    flood = [await world.call(request_id=str(index), tenant="flood") for index in range(2)]
    polite = await world.call(tenant="polite")
    with pytest.raises(Overloaded, match="displaced"):
        await flood[1]
    assert not polite.done()
    await _cancel([flood[0], polite])


async def test_draining_sends_callers_elsewhere() -> None:
    world = RouterScheduler()
    waiting = await world.call()
    world.scheduler.drain()
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await (await world.call())


async def test_the_worker_says_what_output_to_expect_and_a_restarted_router_keeps_its_promises() -> None:
    blocks = BlockLedger(total=40, free=40, cached=0, allocated=0, reserved=0, fenced=0)
    world = RouterScheduler("decode-0")
    big = {"num_prompt_tokens": 16, "max_output_tokens_total": 4096}
    world.status("decode-0", blocks=blocks, max_num_seqs=0)  # 1 + 16 blocks of 36 each
    calls = [await world.call(request_id=str(index), **big) for index in range(3)]
    await world.turn()
    assert [call.done() for call in calls] == [True, True, False]
    await _cancel(calls[2:])
    restarted = RouterScheduler("decode-0")
    held = BlockLedger(total=40, free=38, cached=0, allocated=2, reserved=0, fenced=0)
    restarted.status("decode-0", blocks=held, max_num_seqs=0, num_running=2, num_promised_blocks=32)
    call = await restarted.call(**big)
    await restarted.turn()
    assert not call.done(), "32 blocks are promised to requests that another process placed"
    restarted.status("decode-0", blocks=held, max_num_seqs=0, num_running=2, p90_output_tokens=16)
    calls = [call, *[await restarted.call(request_id=str(index), **big) for index in range(20)]]
    await restarted.turn()
    assert sum(call.done() for call in calls) == 17  # 2 blocks each
    await _cancel(calls)


async def test_an_attempt_that_made_nothing_costs_nothing_and_output_is_charged_as_it_is_made() -> None:
    world = RouterScheduler("decode-0")
    refused = await world.call(tenant="a", num_prompt_tokens=1000)
    await world.turn()
    world.scheduler.complete(refused.result().handoff_id, Outcome.FAILED, 0)
    left = await world.call(tenant="a", num_prompt_tokens=1000)
    world.clock.advance(0.1)
    world.scheduler.turn(world.clock.now())
    left.cancel()  # placed, but it has not heard of it
    await asyncio.gather(left, return_exceptions=True)
    other = await world.call(tenant="b", num_prompt_tokens=100)
    await world.turn()
    assert other.done()
    world.status("decode-0", num_running=2)
    first, second = await world.call(tenant="b"), await world.call(tenant="a")
    world.clock.advance(0.1)
    world.scheduler.on_status("decode-0", world.made_status("decode-0", num_running=1))
    await world.turn()
    assert (first.done(), second.done()) == (False, True), "tenant a has had nothing"
    third = await world.call(tenant="a", request_id="third")
    tokens = {"a": 200, "stranger": 5}
    world.clock.advance(0.1)
    world.scheduler.on_status("decode-0", world.made_status("decode-0", num_running=1, tenant_tokens=tokens))
    await world.turn()
    assert (first.done(), third.done()) == (True, False), "now it has had more than b, whichever router placed it"
    await _cancel([third])


async def test_two_members_that_name_one_process_count_once() -> None:
    world = RouterScheduler("decode-0", "decode-1")
    world.status("decode-1", incarnation="decode-0")
    calls = [await world.call(request_id=str(index)) for index in range(4)]
    await world.turn()
    assert sum(call.done() for call in calls) == 2
    await _cancel(calls)


async def test_evictions_are_counted_once_and_by_reason() -> None:
    world = RouterScheduler("decode-0")
    await world.turn()
    await world.turn(2)
    await world.turn(2)
    labels = {"role": "decode", "reason": "silent"}
    assert world.registry.get_sample_value("stratos_router_worker_evictions_total", labels) == 1
    world.status("decode-0")
    world.fleet.on_lost("decode-0", world.clock.now())
    labels["reason"] = "lost"
    assert world.registry.get_sample_value("stratos_router_worker_evictions_total", labels) == 1


async def test_the_next_attempt_prefers_the_prefill_worker_that_has_the_prompt() -> None:
    world = RouterScheduler("decode-0", "decode-1", *(f"prefill-{index}" for index in range(6)))
    first = await world.call(request_id="moved")
    await world.turn()
    prefill = first.result().prefill[0]
    world.clock.advance(0.1)
    world.status(prefill.worker_id, num_queued_tokens=2000)
    excluded = frozenset({first.result().decode.incarnation})
    second = await world.call(request_id="moved", attempt=1, is_move=True, excluded_incarnations=excluded)
    other = await world.call(request_id="other")
    await world.turn()
    assert second.result().prefill[0] == prefill
    assert second.result().decode != first.result().decode
    assert other.result().prefill[0] != prefill


async def test_after_busy_a_request_goes_back_only_to_a_worker_whose_status_changed() -> None:
    world = RouterScheduler("decode-0")
    world.status("decode-0", version=3)
    first = await world.call()
    await world.turn()
    placed = first.result()
    assert placed.status_version == 3
    world.scheduler.complete(placed.handoff_id, Outcome.FAILED, 0)
    again = await world.call(attempt=1, is_move=True, refusals={"decode-0": placed.status_version})
    for _ in range(3):
        world.status("decode-0", version=3, step=5)
        await world.turn()
    assert not again.done()
    world.status("decode-0", version=4)
    await world.turn()
    assert again.result().status_version == 4


async def test_a_settled_suspect_keeps_its_booking_and_frees_its_worker_for_the_next() -> None:
    world = RouterScheduler("decode-0")
    first = await world.call(request_id="1", is_move=True, is_suspect=True)
    second = await world.call(request_id="2", is_move=True, is_suspect=True)
    await world.turn()
    assert (first.done(), second.done()) == (True, False)
    world.scheduler.complete(first.result().handoff_id, Outcome.SETTLED, 0)
    await world.turn()
    assert second.result().decode.worker_id == "decode-0"
    assert len(world.bookings) == 2


async def test_a_worker_that_stood_still_is_chosen_once_it_moves() -> None:
    world = RouterScheduler("decode-0")
    hung = frozenset({"decode-0"})
    world.clock.advance(2.0)  # silent
    call = await world.call(is_move=True, excluded_incarnations=hung, hung_incarnations=hung)
    await world.turn()
    assert not call.done()
    world.status("decode-0", step=1)
    await world.turn()
    assert call.result().decode.worker_id == "decode-0"


async def test_a_convicted_prompt_is_refused_where_it_waits_and_where_it_comes_again() -> None:
    world = RouterScheduler("decode-0")
    fills = [await world.call(request_id=str(number)) for number in range(2)]
    await world.turn()
    waiting = await world.call(request_id="2", tenant="a", prompt_digest=b"p")
    others = [
        await world.call(request_id="3", tenant="b", prompt_digest=b"p"),
        await world.call(request_id="4", tenant="a", prompt_digest=b"q"),
    ]
    await world.turn()
    assert all(call.done() for call in fills)
    poison = Conviction(tenant="a", prompt_digest=b"p", left_s=60.0)
    answer = world.scheduler.exchange_convictions(ConvictionUpdate(convictions=(poison,)))
    await asyncio.sleep(0)
    assert isinstance(waiting.exception(), PromptRefused)
    again = await world.call(request_id="5", tenant="a", prompt_digest=b"p")
    await asyncio.sleep(0)
    assert isinstance(again.exception(), PromptRefused)
    assert not any(call.done() for call in others)
    assert answer.convictions == (), "the gateway that brought it knows it"
    heard = world.scheduler.exchange_convictions(ConvictionUpdate())
    assert heard.convictions == (poison,), "another gateway hears of it"
    seen = ConvictionUpdate(incarnation=heard.incarnation, cursor=heard.cursor)
    assert world.scheduler.exchange_convictions(seen).convictions == ()
    lost = ConvictionUpdate(incarnation="another", cursor=heard.cursor)
    assert world.scheduler.exchange_convictions(lost).convictions == (poison,), "a cursor of another process"
    for call in others:
        call.cancel()


async def test_rejections_are_counted_by_reason_and_skew_is_shown() -> None:
    world = RouterScheduler("decode-0", "decode-1", "decode-2", "prefill-0")

    def value(name: str, **labels: str) -> float | None:
        return world.registry.get_sample_value(f"stratos_router_{name}", labels)

    world.status("decode-0", features=frozenset({"grammar"}), num_running=2)
    world.status("decode-1", features=frozenset(), protocol_version=PROTOCOL_VERSION - 1)
    world.status("decode-2", protocol_version=PROTOCOL_VERSION + 2)
    call = await world.call(required_features=frozenset({"grammar"}))
    await world.turn(0.5)
    world.scheduler.show_metrics()
    assert not call.done()
    reasons = {reason: value("rejections_total", reason=reason) for reason in ("batch_slots", "features", "protocol")}
    assert reasons == {"batch_slots": 1, "features": 1, "protocol": 1}
    assert value("rejections_total", reason="role") is None
    versions = {label: value("workers_by_protocol", role="decode", version=label) for label in VERSION_LABELS}
    assert versions == {"older": 1, "same": 1, "newer": 0, "unusable": 1}
    assert value("workers_lacking_features", role="decode") == 2
    assert value("workers_lacking_features", role="prefill") == 0
    assert value("status_age_seconds", role="decode") == pytest.approx(0.5)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_a_turn_places_a_few_and_the_next_ones_go_on_with_every_model_and_none_is_forgotten() -> None:
    models = ["m", "n"]
    world = RouterScheduler(*(f"decode-{number}" for number in range(8)))
    for number in range(8):
        identity = replace(IDENTITY, model_digest=models[number % 2])
        world.status(f"decode-{number}", identity=identity)
    calls = {
        model: [await world.call(request_id=f"{model}{i}", model_digest=model) for i in range(5)] for model in models
    }
    late = await world.call(request_id="late", model_digest="unknown", deadline_s=world.clock.now() + 0.005)
    world.clock.advance(0.01)
    placed = []
    for is_last in (False, False, True):
        assert world.scheduler.turn(world.clock.now(), 4) is is_last
        await asyncio.sleep(0)
        placed.append([sum(call.done() for call in calls[model]) for model in models])
    assert placed == [[2, 2], [4, 4], [5, 5]], "models take turns over turns, too"
    assert isinstance(late.exception(), QueueTimeout), "what has waited too long is told in each turn"


async def test_the_loop_goes_on_at_once_with_what_a_turn_left() -> None:
    world = RouterScheduler(*(f"decode-{number}" for number in range(8)))
    calls = [await world.call(request_id=str(number)) for number in range(3 * MAX_PLACED)]
    running = asyncio.create_task(world.scheduler.run())
    for _ in range(12):
        await asyncio.sleep(0)
    assert all(call.done() for call in calls), "no tick, and nothing that wakes it, comes in between"
    running.cancel()
