"""Requests of a decode worker without network: orphans by a fake clock, deadlines, limits, slow gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, Busy, Draining, NotFound, Overloaded
from stratos.core.generation import PrefillPath, Submission
from stratos.core.ledger.usage import MeterTag, UsageCount
from stratos.core.requests.records import ChoiceOutput, ChoiceState, EngineRequest, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.results import StepResult
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner, fake_generate
from stratos.engine.settings import SchedulerConfig
from stratos.worker.decode.request_table import RequestTable
from stratos.worker.decode.session import OutputSession, StepCounts, StepDeltas
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.records import PromptOrigin, RequestRecord
from stratos.worker.status import StatusFeed
from tests.support.waiting import eventually
from tests.support.worlds.terms import with_terms
from tests.support.worlds.usage_counts import Gateway, empty_log

PROMPT = tuple(range(10))


class AddingPolicy:
    """Puts every request into the engine, once it may."""

    def __init__(self, engine: ThreadEngine) -> None:
        self._engine = engine
        self.may_add = asyncio.Event()
        self.may_add.set()
        self.num_given_back = 0
        self.error: Exception | None = None

    async def prefill(self, record: RequestRecord, stack: AsyncExitStack) -> None:
        stack.callback(self._give_back)
        await self.may_add.wait()
        if self.error is not None:
            raise self.error
        record.origin = PromptOrigin(path=PrefillPath.LOCAL_NO_ENDPOINT)
        await self._engine.add(record.submission.request)

    def _give_back(self) -> None:
        self.num_given_back += 1


class Bench:
    """A table over a fake engine."""

    def __init__(self, **config: float) -> None:
        self.clock = FakeClock()
        # steps that wait: without, thousands of them are over before the event loop takes its turn
        runner = FakeRunner(FakeConfig(worker_weight=2, step_s=0.001))
        self.engine = ThreadEngine(EngineCore(runner, SchedulerConfig()))
        self.policy = AddingPolicy(self.engine)
        values = {"max_requests": 8, "orphan_ttl_s": 5.0} | config
        self.table = RequestTable(
            self.engine, self.policy, self.clock, news=StatusFeed(), usage=empty_log(self.clock), **values
        )  # type: ignore[arg-type]
        self.engine.subscribe(self.table.on_step)

    def session(self, *, has_columns: bool = False) -> OutputSession:
        return OutputSession(self.engine, self.clock, has_columns=has_columns)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.engine.start()
    yield made
    await made.table.close()
    await made.engine.close()


def submission(request_id: str = "r", attempt: int = 0, max_tokens: int = 3, n: int = 1, **terms: float) -> Submission:
    request = EngineRequest(
        key=RequestKey(request_id, attempt),
        prompt_ids=PROMPT,
        choices=tuple(ChoiceState(index=i) for i in range(n)),
        sampling=SamplingParams(max_tokens=max_tokens),
        seed=0,
    )
    return Submission(request=with_terms(request, **terms), model_digest="fake")


def resumed(*choices: ChoiceState) -> Submission:
    made = submission(max_tokens=3000)
    return replace(made, request=replace(made.request, choices=choices))


def metered(max_tokens: int) -> Submission:
    return replace(submission(max_tokens=max_tokens), meter=MeterTag())


async def counts_of(session: OutputSession) -> list[RequestKey]:
    session.close()
    return [c.key for m in [m async for m in session.messages()] if isinstance(m, StepCounts) for c in m.counts]


async def offered_by(bench: Bench) -> list[UsageCount]:
    """What another gateway is told some time later."""
    other = Gateway()
    bench.table.usage.join(other)
    bench.clock.advance(60)
    bench.table.reap()
    return other.heard


async def next_deltas(session: OutputSession) -> int:
    """Send once; returns how many tokens went."""
    async with aclosing(session.messages()) as messages:
        sent = await anext(message async for message in messages if isinstance(message, StepDeltas))
    return sum(len(choice.token_ids) for delta in sent.deltas for choice in delta.choices)


async def read_tokens(session: OutputSession) -> list[int]:
    session.close()
    deltas = [d for m in [m async for m in session.messages()] if isinstance(m, StepDeltas) for d in m.deltas]
    return [token for delta in deltas for choice in delta.choices for token in choice.token_ids]


async def test_gateway_that_does_not_read_gets_everything_in_one_message(bench: Bench) -> None:
    session = bench.session()
    bench.table.submit(session, submission(max_tokens=50))
    await eventually(lambda: bench.table.num_open_tasks == 0)
    assert await read_tokens(session) == fake_generate(PROMPT, 50, prefill_weight=2, decode_weight=2)
    bench.table.discard_sent([RequestKey("r", 0)])
    assert len(bench.table) == 0


async def test_orphans_live_exactly_as_long_as_they_may(bench: Bench) -> None:
    session = bench.session()
    bench.table.submit(session, submission(max_tokens=3000))
    await eventually(lambda: bench.engine.status().num_running == 1)
    bench.table.release(session)
    bench.clock.advance(4.9)
    bench.table.reap()
    assert bench.table.num_orphans == 1
    bench.clock.advance(0.2)
    bench.table.reap()
    assert len(bench.table) == 0
    await eventually(lambda: bench.table.num_open_tasks == 0)
    assert bench.policy.num_given_back == 1
    await eventually(lambda: bench.engine.status().blocks.allocated == 0)


async def test_a_choice_cancelled_before_the_engine_knows_the_request_does_not_run(bench: Bench) -> None:
    bench.policy.may_add.clear()
    session, key = bench.session(), RequestKey("r", 0)
    bench.table.submit(session, submission(n=3, max_tokens=3000))
    await asyncio.sleep(0)
    bench.table.cancel(key, {0: 0, 2: 0})
    bench.policy.may_add.set()
    await eventually(lambda: bench.engine.status().step > 30)
    assert bench.engine.status().num_running == 1
    bench.table.cancel(key, {1: 0})
    await eventually(lambda: bench.table.num_open_tasks == 0)
    await eventually(lambda: bench.engine.status().blocks.allocated == 0)


@pytest.mark.parametrize("is_placed", [False, True])
async def test_a_request_leaves_the_engine_before_what_it_runs_with_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_placed: bool
) -> None:
    events: list[str] = []
    monkeypatch.setattr(bench.policy, "_give_back", lambda: events.append("given back"))
    monkeypatch.setattr(bench.engine, "abort", lambda *_: events.append("aborted"))
    if not is_placed:
        bench.policy.may_add.clear()
    bench.table.submit(bench.session(), submission(max_tokens=3000))
    await asyncio.sleep(0)
    if is_placed:
        await eventually(lambda: bench.engine.status().num_running == 1)
    bench.table.cancel(RequestKey("r", 0))
    await eventually(lambda: bench.table.num_open_tasks == 0)
    assert events == ["aborted", "given back"]


async def test_what_was_decoded_behind_the_end_of_a_choice_is_not_counted(bench: Bench) -> None:
    """The defect: a gateway that died was followed by one that billed it."""
    session = bench.session()
    made = replace(submission(max_tokens=3000, n=2), meter=MeterTag())
    bench.table.submit(session, made)
    await eventually(lambda: bench.engine.status().step > 30)
    assert await next_deltas(session) > 7
    bench.table.cancel(RequestKey("r", 0), {0: 3})
    bench.table.cancel(RequestKey("r", 0), {1: 4})
    bench.table.release(session)
    [count] = await offered_by(bench)
    assert count.num_output_tokens == 7


@pytest.mark.parametrize(("n", "num_counted"), [(1, 2), (2, 6)], ids=["it is corrected", "of several it is not known"])
async def test_a_choice_that_had_ended_here_before_its_gateway_said_so(bench: Bench, n: int, num_counted: int) -> None:
    session = bench.session()
    bench.table.submit(session, replace(submission(max_tokens=3, n=n), meter=MeterTag()))
    await eventually(lambda: bench.table.num_open_tasks == 0)
    await read_tokens(session)
    bench.table.discard_sent([RequestKey("r", 0)])
    bench.table.cancel(RequestKey("r", 0), {0: 2})
    bench.table.release(session)
    [count] = await offered_by(bench)
    assert (count.num_output_tokens, count.is_cut) == (num_counted, False)


async def test_what_its_gateway_was_not_sent_when_it_was_lost_is_cut(bench: Bench) -> None:
    """The defect: the client of a killed gateway paid for the seconds in which another one might have gone on."""
    session = bench.session()
    bench.table.submit(session, metered(max_tokens=3000))
    await eventually(lambda: bench.engine.status().step > 5)
    num_sent = await next_deltas(session)
    bench.table.release(session)
    later = bench.engine.status().step + 20
    await eventually(lambda: bench.engine.status().step > later)
    [count] = await offered_by(bench)
    assert (count.num_output_tokens, count.is_cut) == (num_sent, True)


async def test_what_the_first_of_two_lost_gateways_was_sent_counts(bench: Bench) -> None:
    """The second one had a record that was behind, and was sent nothing."""
    first, second = bench.session(), bench.session()
    bench.table.submit(first, metered(max_tokens=3000))
    await eventually(lambda: bench.engine.status().step > 5)
    num_sent = await next_deltas(first)
    bench.table.release(first)
    bench.table.take_over(second, RequestKey("r", 1000), {0: 2})
    bench.table.release(second)
    [count] = await offered_by(bench)
    assert (count.num_output_tokens, count.key.attempt) == (num_sent, 1000)


async def test_attached_orphan_is_not_reaped(bench: Bench) -> None:
    session, other = bench.session(), bench.session()
    bench.table.submit(session, submission())
    bench.table.release(session)
    bench.table.attach(other, RequestKey("r", 0), {})
    bench.clock.advance(60)
    bench.table.reap()
    await eventually(lambda: bench.table.num_open_tasks == 0)
    assert await read_tokens(other) == fake_generate(PROMPT, 3, prefill_weight=2, decode_weight=2)
    with pytest.raises(NotFound):
        bench.table.attach(other, RequestKey("r", 1), {})


async def test_a_request_goes_on_under_a_newer_attempt_and_its_older_owner_is_fenced_off(bench: Bench) -> None:
    old, new = bench.session(), bench.session()
    bench.table.submit(old, metered(max_tokens=3000))
    await eventually(lambda: bench.engine.status().num_running == 1)
    bench.table.take_over(new, RequestKey("r", 1000), {0: 0})
    bench.table.cancel(RequestKey("r", 0))
    assert len(bench.table) == 1, "what its older owner says is of an attempt that is not known"
    with pytest.raises(NotFound):
        bench.table.attach(old, RequestKey("r", 0), {})
    bench.table.release(old)
    assert bench.table.num_orphans == 0
    for attempt in (1000, 999, 0):
        with pytest.raises(BadRequest, match="fenced off") as caught:
            bench.table.take_over(old, RequestKey("r", attempt), {0: 0})
        assert caught.value.code == "fenced_attempt"
        with pytest.raises(BadRequest, match="is open here"):
            bench.table.submit(old, submission(attempt=attempt))
    bench.table.cancel(RequestKey("r", 1000))
    await eventually(lambda: bench.table.num_open_tasks == 0)
    assert await counts_of(new) == [RequestKey("r", 1000)], "it is billed once, by the newer attempt"


async def test_who_takes_over_gets_what_it_has_not_and_what_follows(bench: Bench) -> None:
    expected = fake_generate(PROMPT, 40, prefill_weight=2, decode_weight=2)
    old, new = bench.session(), bench.session()
    bench.table.submit(old, submission(max_tokens=40))
    await eventually(lambda: bench.engine.status().step > 5)
    bench.table.release(old)
    bench.table.take_over(new, RequestKey("r", 1000), {0: 3})
    await eventually(lambda: bench.table.num_open_tasks == 0)
    assert await read_tokens(new) == expected[3:]
    bench.table.discard_sent([RequestKey("r", 1000)])
    assert len(bench.table) == 0


@pytest.mark.parametrize("num_received", [{0: 1}, {0: 6000}, {0: 2, 1: 0}, {1: 0}])
async def test_what_the_log_does_not_have_is_not_gone_on_with(bench: Bench, num_received: dict[int, int]) -> None:
    """It began behind the second token of its only choice."""
    session, other = bench.session(), bench.session()
    bench.table.submit(session, resumed(ChoiceState(index=0, emitted_ids=(7, 8)), ChoiceState(index=1, finished=True)))
    with pytest.raises(NotFound):
        bench.table.take_over(other, RequestKey("r", 1000), num_received)
    with pytest.raises(NotFound):
        bench.table.take_over(other, RequestKey("unknown", 1000), {0: 0})
    bench.table.cancel(RequestKey("r", 0))
    assert len(bench.table) == 0, "its owner has it as before"


async def test_a_choice_that_was_given_up_is_not_gone_on_with(bench: Bench) -> None:
    session, other = bench.session(), bench.session()
    bench.table.submit(session, submission(max_tokens=3000, n=2))
    bench.table.cancel(RequestKey("r", 0), {1: 0})
    with pytest.raises(NotFound):
        bench.table.take_over(other, RequestKey("r", 1000), {0: 0, 1: 0})
    bench.table.take_over(other, RequestKey("r", 1000), {0: 0})


async def test_a_session_forgets_the_number_of_each_request_that_is_over_or_elsewhere(bench: Bench) -> None:
    session, other = bench.session(has_columns=True), bench.session(has_columns=True)
    names = ("ends", "cancelled", "newer", "attached", "orphaned")
    for number, name in enumerate(names, 1):
        session.count_submit(number)
        bench.table.submit(session, submission(name, max_tokens=1 if name == "ends" else 3000))
        session.note_submit(RequestKey(name, 0), number)
    assert list(session.submit_of.values()) == [1, 2, 3, 4, 5]
    await eventually(lambda: bench.table.num_open_tasks == 4, "the first one has ended")
    await read_tokens(session)
    bench.table.discard_sent([RequestKey("ends", 0)])
    bench.table.cancel(RequestKey("cancelled", 0))
    bench.table.submit(other, submission("newer", attempt=1))
    bench.table.attach(other, RequestKey("attached", 0), {})
    assert session.submit_of == {RequestKey("orphaned", 0): 5}
    bench.table.release(session)
    assert (session.submit_of, other.submit_of) == ({}, {}), "a gateway that attaches knows no number of it"


async def test_numbers_of_submits_have_no_gap_and_no_repeat(bench: Bench) -> None:
    for numbers, wrong in (([1], 1), ([], 2), ([1], 3)):
        session = bench.session(has_columns=True)
        for number in numbers:
            session.count_submit(number)
        with pytest.raises(BadRequest, match=f"says that it is number {wrong}"):
            session.count_submit(wrong)
    older = bench.session(has_columns=True)
    for number in range(3):
        older.count_submit(0)
        older.note_submit(RequestKey(f"r{number}", 0), 0)
    assert (older.num_submits, older.submit_of) == (3, {})


async def test_what_is_refused(bench: Bench) -> None:
    bench.policy.may_add.clear()
    session = bench.session()
    for number in range(8):
        bench.table.submit(session, submission(f"r{number}", attempt=1))
    with pytest.raises(Overloaded):
        bench.table.submit(session, submission("one-more"))
    for attempt in (0, 1):
        with pytest.raises(BadRequest):
            bench.table.submit(session, submission("r0", attempt=attempt))
    bench.table.submit(session, submission("r0", attempt=2))
    bench.table.is_draining = True
    with pytest.raises(Draining):
        bench.table.submit(session, submission("r0", attempt=3))


async def test_deadline_bounds_the_placing(bench: Bench) -> None:
    bench.policy.may_add.clear()
    session = bench.session()
    bench.table.submit(session, submission(deadline_s=bench.clock.now() + 0.02))
    await eventually(lambda: bench.table.num_open_tasks == 0)
    session.close()
    messages = [m async for m in session.messages() if isinstance(m, StepDeltas)]
    assert messages[0].deltas[0].error is not None
    assert messages[0].deltas[0].error.code == "queue_timeout"
    assert bench.policy.num_given_back == 1


async def test_an_output_that_does_not_fit_ends_its_request_alone(bench: Bench) -> None:
    bench.policy.may_add.clear()
    session = bench.session()
    for name in ("bad", "good"):
        bench.table.submit(session, submission(name, max_tokens=2))
    outputs = [ChoiceOutput(RequestKey("bad", 0), 0, 5, [1]), ChoiceOutput(RequestKey("good", 0), 0, 0, [7, 8])]
    outputs[1].finish_reason = FinishReason.LENGTH
    bench.table.on_step(StepResult(step=1, outputs=outputs))
    session.close()
    (message,) = [m async for m in session.messages() if isinstance(m, StepDeltas)]
    found = {delta.key.request_id: delta for delta in message.deltas}
    assert found["good"].choices[0].token_ids == [7, 8]
    assert found["bad"].error is not None
    assert found["bad"].error.code == "internal_error"
    await eventually(lambda: bench.table.num_open_tasks == 0)


@pytest.mark.parametrize(("error", "code"), [(Busy("full"), "busy"), (ZeroDivisionError("bug"), "internal_error")])
async def test_failed_placing_is_answered(bench: Bench, error: Exception, code: str) -> None:
    bench.policy.error = error
    session = bench.session()
    bench.table.submit(session, submission())
    await eventually(lambda: bench.table.num_open_tasks == 0)
    session.close()
    messages = [m async for m in session.messages() if isinstance(m, StepDeltas)]
    answer = messages[0].deltas[0].error
    assert answer is not None
    assert answer.code == code
    assert "bug" not in answer.message
