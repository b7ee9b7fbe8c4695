"""Streams go on, token by token, when decode workers do not."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import openai
import pytest

from stratos.common.errors import AdapterUnavailable, Internal, Overloaded
from stratos.core.placement import Outcome
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_world import END_ID, World, gateway_world, say

TEXT = "".join(f"value_{i} = {i}\n" for i in range(12)) + "é \U0001f600"


@functools.cache
def text_ids() -> list[int]:
    return [*shipped_tokenizer().encode_plain(TEXT), END_ID]


async def stream_ids(world: World, **more: Any) -> tuple[str, list[int], str | None]:
    stream = await world.openai.completions.create(
        **{"model": "base", "prompt": "x", "max_tokens": 1000, "stream": True, **more},
        extra_body={"return_token_ids": True},
    )
    text, ids, reason = "", [], None
    async for chunk in stream:
        choice = chunk.choices[0]
        text += choice.text
        ids += choice.model_dump()["token_ids"]
        reason = choice.finish_reason or reason
    return text, ids, reason


FAULTS = {
    "broken": {"die_after": 7},
    "hang": {"hang_after": 7},
    "drain": {"drain_after": 7},
    "conflict": {"skip_after": 7},
}


@pytest.mark.parametrize("cause", FAULTS)
async def test_a_stream_goes_on_at_the_token_where_its_worker_was_lost(cause: str) -> None:
    silence_timeout_s = 1.5 if cause == "hang" else 5.0  # silence is waited out, and a busy machine is silent, too
    async with gateway_world(2, sessions={"silence_timeout_s": silence_timeout_s, "step_timeout_s": 5.0}) as world:
        for worker in world.workers:
            worker.script = say(TEXT)
        for name, value in FAULTS[cause].items():
            setattr(world.worker, name, value)
        assert await stream_ids(world) == (TEXT, text_ids(), "stop")
        first, second = world.workers[0].submits[0], world.workers[1].submits[0]
        assert second.request_id == first.request_id
        assert (first.attempt, second.attempt) == (0, 1)
        assert second.seed == first.seed
        assert list(second.choices[0].emitted_ids) == text_ids()[:7]
        recovery = world.router.requests[1]
        assert recovery.is_move
        assert recovery.excluded_incarnations == {world.worker.ref.incarnation}
        assert recovery.num_prompt_tokens == len(first.prompt_ids) + 7
        assert world.metric("stratos_recoveries_total", cause=cause) == 1
        await world.wait_idle()
        assert [outcome for _, outcome in world.router.completed] == [Outcome.FAILED, Outcome.FINISHED]


async def test_a_standing_step_counter_is_a_hang() -> None:
    limits = {"silence_timeout_s": 5.0, "step_timeout_s": 2.0}  # a busy machine stands still for a moment, too
    async with gateway_world(2, sessions=limits) as world:
        for worker in world.workers:
            worker.script = say(TEXT)
        world.worker.freeze_after = 3
        assert await stream_ids(world) == (TEXT, text_ids(), "stop")
        assert world.metric("stratos_recoveries_total", cause="hang") == 1


async def test_a_lost_connection_to_the_only_worker_is_made_again() -> None:
    async with gateway_world(1) as world:
        world.worker.script = say(TEXT)
        world.worker.reset_after = 4
        assert await stream_ids(world) == (TEXT, text_ids(), "stop")
        assert [s.attempt for s in world.worker.submits] == [0, 1]
        assert not world.router.requests[1].excluded_incarnations


async def test_an_idle_worker_may_stand_still() -> None:
    async with gateway_world(1, sessions={"silence_timeout_s": 5.0, "step_timeout_s": 1.5}) as world:
        world.worker.script = say(TEXT)
        await stream_ids(world)
        await asyncio.sleep(2.0)  # longer than the limit, with signs of life all the time
        await stream_ids(world)
        assert world.metric("stratos_recoveries_total", cause="hang") == 0


async def test_finished_choices_stay_finished_after_a_recovery() -> None:
    async with gateway_world(2) as world:
        short, long = [*shipped_tokenizer().encode_plain("a"), END_ID], text_ids()
        for worker in world.workers:
            worker.script = lambda submit, choice: [short, long, long][choice]
        world.worker.die_after = 10
        answer = await world.openai.completions.create(
            model="base", prompt="x", n=3, stop=["value_9 "], max_tokens=1000
        )
        expected = TEXT.partition("value_9 ")[0]
        assert [c.text for c in answer.choices] == ["a", expected, expected]
        resumed = world.workers[1].submits[0].choices
        assert [c.finished for c in resumed] == [True, False, False]
        assert [len(c.emitted_ids) for c in resumed] == [2, 10, 10]


async def test_stop_string_that_spans_a_recovery() -> None:
    async with gateway_world(2) as world:
        ids = shipped_tokenizer().encode_plain("one two three four")
        cut = next(
            n for n in range(1, len(ids)) if shipped_tokenizer().decode(ids[:n]).endswith(" tw") or n == len(ids) // 2
        )
        for worker in world.workers:
            worker.script = lambda submit, choice: [*ids, END_ID]
        world.worker.die_after = cut
        stop = shipped_tokenizer().decode(ids[cut - 1 : cut + 1])
        text, _, reason = await stream_ids(world, stop=[stop])
        assert (text, reason) == ("one two three four".partition(stop)[0], "stop")


async def test_busy_asks_again_without_excluding_or_counting_a_death() -> None:
    async with gateway_world(1) as world:
        world.worker.script = say(TEXT)
        world.worker.busy_times = 5
        assert await stream_ids(world) == (TEXT, text_ids(), "stop")
        assert world.metric("stratos_recoveries_total", cause="busy") == 5
        assert all(not r.excluded_incarnations for r in world.router.requests)
        assert [r.attempt for r in world.router.requests] == [0, 1, 2, 3, 4, 5]
        assert all(r.is_move for r in world.router.requests[1:])


async def test_a_request_that_loses_two_workers_as_it_begins_is_refused() -> None:
    async with gateway_world(3) as world:
        for worker in world.workers:
            worker.die_after = 0
        with pytest.raises(openai.InternalServerError) as caught:
            await world.openai.completions.create(model="base", prompt="x")
        assert (caught.value.status_code, caught.value.code) == (503, "prompt_refused")
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
        assert [len(w.submits) for w in world.workers] == [1, 1, 0]
        assert [request.is_suspect for request in world.router.requests] == [False, True]
        (convicted,) = world.router.convicted
        assert convicted.prompt_digest == world.router.requests[0].prompt_digest != b""


async def test_a_request_that_meets_a_killed_and_a_stopped_worker_as_it_begins_is_no_culprit() -> None:
    async with gateway_world(3, sessions={"silence_timeout_s": 2.0, "step_timeout_s": 8.0}) as world:
        killed, stopped, _ = world.workers
        killed.die_after = 0
        stopped.is_hung = True
        answer = await world.openai.completions.create(model="base", prompt="x")
        assert answer.choices[0].text == "hello world"
        assert [request.is_suspect for request in world.router.requests] == [False, True, True]
        assert world.router.requests[2].hung_incarnations == {stopped.ref.incarnation}
        assert not world.router.convicted


async def test_a_worker_that_stands_still_with_the_request_it_took_is_held_against_it() -> None:
    async with gateway_world(3, sessions={"silence_timeout_s": 5.0, "step_timeout_s": 0.4}) as world:
        for worker in world.workers:
            worker.freeze_after = 0
        with pytest.raises(openai.InternalServerError):
            await world.openai.completions.create(model="base", prompt="x")
        assert [len(w.submits) for w in world.workers] == [1, 1, 0]


async def test_a_stream_that_ran_for_a_while_at_each_lost_worker_goes_on_however_often() -> None:
    async with gateway_world(5) as world:
        for number, worker in enumerate(world.workers):
            worker.script = say(TEXT)
            worker.die_after = 10 * (number + 1) if number < 4 else None
        assert await stream_ids(world) == (TEXT, text_ids(), "stop")
        assert [len(w.submits) for w in world.workers] == [1] * 5
        assert not any(request.is_suspect for request in world.router.requests)


async def test_an_error_after_the_first_token_is_the_last_event() -> None:
    async with gateway_world(2) as world:
        world.worker.script, world.worker.die_after = say(TEXT), 3
        world.workers[1].error = Internal("a bug")
        response = await world.http.post("/v1/completions", json={"model": "base", "prompt": "x", "stream": True})
        events = response.text.strip().split("\n\n")
        assert response.status_code == 200
        assert '"error"' in events[-1]
        assert "[DONE]" not in response.text


async def test_the_clients_deadline_ends_a_stream_with_an_error_event_and_an_answer_with_a_status() -> None:
    async with gateway_world(1) as world:
        world.worker.script, world.worker.step_s = say(TEXT), 0.05
        body, headers = {"model": "base", "prompt": "x", "max_tokens": 1000}, {"x-stratos-deadline-ms": "1500"}
        response, whole = await asyncio.gather(
            world.http.post("/v1/completions", json={**body, "stream": True}, headers=headers),
            world.http.post("/v1/completions", json=body, headers=headers),
        )
        events = response.text.strip().split("\n\n")
        assert (response.status_code, len(events) > 2) == (200, True), "what came in time was sent"
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "deadline_exceeded")
        assert whole.headers["retry-after"]
        await eventually(lambda: not world.worker.running, "the worker is told")
        assert all(0 < submit.terms.end_ms <= 1500 for submit in world.worker.submits)


async def test_the_sdk_raises_an_error_that_comes_in_mid_stream() -> None:
    async with gateway_world(1) as world:
        world.worker.script, world.worker.step_s = say(TEXT), 0.02
        stream = await world.openai.completions.create(model="base", prompt="x", stream=True)
        world.router.errors = [Overloaded("full")]
        world.worker.die_after = 0
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code == "overloaded"


async def test_an_adapter_that_one_worker_cannot_load_is_found_at_another() -> None:
    async with gateway_world(2) as world:
        world.worker.error = AdapterUnavailable("the object store does not answer")
        world.workers[1].script = say(TEXT)
        assert await stream_ids(world) == (TEXT, text_ids(), "stop")
        assert [len(worker.submits) for worker in world.workers] == [1, 1]
        assert world.metric("stratos_recoveries_total", cause="adapter") == 1


async def test_an_adapter_that_no_worker_can_load_is_told_after_three_of_them() -> None:
    async with gateway_world(4) as world:
        for worker in world.workers:
            worker.error = AdapterUnavailable("the object store does not answer")
        with pytest.raises(openai.InternalServerError) as caught:
            await world.openai.completions.create(model="base", prompt="x")
        assert (caught.value.status_code, caught.value.code) == (503, "adapter_unavailable")
        assert [len(worker.submits) for worker in world.workers] == [1, 1, 1, 0]


async def test_unreachable_workers_are_gone_around() -> None:
    async with gateway_world(2) as world:
        await world.worker.die()
        answer = await world.openai.completions.create(model="base", prompt="x")
        assert answer.choices[0].text == "hello world"
        assert world.metric("stratos_recoveries_total", cause="unreachable") == 1


async def test_thirty_two_streams_survive_the_death_of_one_of_two_workers() -> None:
    text = "one two three four five six seven eight nine ten"
    ids = [*shipped_tokenizer().encode_plain(text), END_ID]
    async with gateway_world(2) as world:
        for worker in world.workers:
            worker.script, worker.step_s = say(text), 0.002
        world.worker.die_after = len(ids) // 2
        results = await asyncio.gather(*(stream_ids(world) for _ in range(32)))
        assert results == [(text, ids, "stop")] * 32
        await world.wait_idle()


async def test_drain_of_the_gateway_lets_streams_end_and_refuses_new_ones() -> None:
    async with gateway_world(1, drain_timeout_s=10) as world:
        world.worker.script, world.worker.step_s = say(TEXT), 0.005
        running = asyncio.create_task(stream_ids(world))
        await eventually(lambda: world.worker.submits, "the stream runs")
        world.stop.set()
        await eventually(lambda: world.service.not_ready_reason(), "draining")
        response = await world.http.post("/v1/completions", json={"model": "base", "prompt": "x"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        assert await running == (TEXT, text_ids(), "stop")
        assert await world.exit_code == 0
