"""A generation through its attempts: what is asked of the router, what is submitted, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import (
    BadRequest,
    Busy,
    DeadlinePassed,
    Draining,
    Internal,
    Overloaded,
    PromptRefused,
    QueueTimeout,
    WorkerLost,
)
from stratos.core.generation import Receipt, Submission
from stratos.core.placement import Outcome
from stratos.core.requests.records import ChoiceState, FinishReason, PositionLogprobs, TokenLogprob
from stratos.core.requests.sampling_params import SamplingParams
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.generation import Generation
from stratos_gateway.generation.journal import ChoiceJournal
from tests.support.fakes.gateway_fakes import (
    FakeRouter,
    FakeSessions,
    PlainText,
    Play,
    SteppedSink,
    make_platform,
    output,
)
from tests.support.worlds.terms import make_terms

LENGTH = FinishReason.LENGTH
TERMS = make_terms(tenant="t", cache_salt=b"salt", priority_class=1, adapter_digest="d", adapter_uri="u")


@dataclass
class Ran:
    generation: Generation
    router: FakeRouter
    sessions: FakeSessions

    @property
    def submissions(self) -> list[Submission]:
        return [submission for session in self.sessions.opened for submission in session.submissions]


async def run(
    *plays: Play | None,
    router: FakeRouter | None = None,
    back: frozenset[str] = frozenset(),
    n: int = 1,
    clock: FakeClock | None = None,
    deadline_s: float | None = None,
    end_s: float | None = None,
    prior: tuple[int, ...] = (),
    **sampling: int,
) -> Ran:
    router, sessions = router or FakeRouter(), FakeSessions(list(plays), back=back)
    spec = GenerationSpec(
        terms=replace(TERMS, deadline_s=deadline_s, end_s=end_s),
        model_digest="m",
        prompt_ids=(1, 2, 3),
        sampling=SamplingParams(**{"max_tokens": 8, **sampling}),
        seed=7,
        prior=(ChoiceState(index=0, emitted_ids=prior),) if prior else (),
    )
    platform = make_platform(router, sessions, clock)
    journals = [ChoiceJournal(i, PlainText(), PlainText()) for i in range(n)]  # type: ignore[arg-type]
    for journal, state in zip(journals, spec.prior, strict=False):
        journal.resume(state)
    generation = Generation(spec, journals, platform, lambda: None)
    await generation.run()
    return Ran(generation, router, sessions)


def says(*token_ids: int, ends: bool = False, slowly: bool = False, loss: str = "broken") -> Play:
    """The worker adds tokens to what it was given, ``slowly`` a step each, and ends the choice or is lost."""

    def play(sink: SteppedSink, submission: Submission) -> None:
        offset = len(submission.request.choices[0].emitted_ids)
        steps = [(token_id,) for token_id in token_ids] if slowly else [token_ids]
        for ids in steps:
            sink.on_output(output(submission.request.key, offset, ids, LENGTH if ends else None))
            offset += len(ids)
        if not ends:
            sink.on_lost(loss)

    return play


def fails(error: Exception) -> Play:
    return lambda sink, submission: sink.on_output(output(submission.request.key, error=error))  # type: ignore[arg-type]


def is_lost(cause: str, *, was_taken: bool = True) -> Play:
    return lambda sink, submission: sink.on_lost(cause, was_taken=was_taken)


STOPPED = is_lost("hang", was_taken=False)
"""The worker stood still before it took the request."""


async def test_one_attempt_carries_the_terms_and_reports_how_it_ended() -> None:
    ran = await run(says(5, 6, ends=True))
    assert ran.generation.error is None
    (request,), (submission,) = ran.router.requests, ran.submissions
    assert (request.terms.tenant, request.terms.priority_class, request.terms.adapter.digest) == ("t", 1, "d")
    assert (request.terms.cache_salt, request.terms.adapter.uri) == (b"", ""), "the router gets no salt and no URI"
    assert (request.num_prompt_tokens, request.max_output_tokens_total, request.is_move) == (3, 8, False)
    assert submission.request.terms == TERMS
    assert submission.handoff_id == "handoff-1"
    assert ran.router.outcomes == [Outcome.FINISHED]


async def test_the_next_attempt_resumes_from_the_journal_at_another_worker() -> None:
    ran = await run(says(5, 6), says(7, ends=True))
    assert ran.generation.error is None
    assert ran.generation.transcript.choices[0].ids == [5, 6, 7]
    first, second = ran.submissions
    assert second.request.choices[0].emitted_ids == (5, 6)
    assert (first.request.key.attempt, second.request.key.attempt) == (0, 1)
    again = ran.router.requests[1]
    assert (again.num_prompt_tokens, again.max_output_tokens_total, again.is_move) == (5, 6, True)
    assert again.excluded_incarnations == {"inc-1"}
    assert ran.router.outcomes == [Outcome.FAILED, Outcome.FINISHED]


async def test_a_worker_that_takes_a_new_session_at_once_is_not_excluded() -> None:
    back = frozenset({"inc-1"})
    ran = await run(is_lost("broken"), says(5, ends=True), back=back)
    assert ran.router.requests[1].excluded_incarnations == frozenset()
    ran = await run(is_lost("hang"), says(5, ends=True), back=back)
    assert ran.router.requests[1].hung_incarnations == {"inc-1"}, "a hang is not the connection's fault"


LOSSES = {"broken": is_lost("broken"), "hang": is_lost("hang"), "lost": fails(WorkerLost("its engine is gone"))}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_request_that_saw_two_workers_lost_as_it_began_is_refused(loss: str) -> None:
    ran = await run(LOSSES[loss], LOSSES[loss])
    assert isinstance(ran.generation.error, PromptRefused)
    assert [request.is_suspect for request in ran.router.requests] == [False, True]
    assert ran.router.outcomes == [Outcome.FAILED, Outcome.FAILED]


@pytest.mark.parametrize("loss", ["broken", "hang"])
async def test_a_request_that_settled_before_each_loss_goes_on_however_often_it_moves(loss: str) -> None:
    steps = [says(*range(5), slowly=True, loss=loss) for _ in range(6)]
    ran = await run(*steps, says(5, ends=True), max_tokens=64)
    assert ran.generation.error is None
    assert not any(request.is_suspect for request in ran.router.requests)
    assert len(ran.generation.transcript.choices[0].ids) == 31


async def test_tokens_of_the_first_steps_do_not_clear() -> None:
    ran = await run(says(5), says(6), says(7, ends=True))
    assert isinstance(ran.generation.error, PromptRefused), "it may crash its worker in the step after its first token"


async def test_a_suspect_that_settles_is_none_any_more_and_the_router_hears_of_it() -> None:
    settles = says(*range(5), slowly=True)
    ran = await run(is_lost("broken"), settles, is_lost("broken"), says(5, ends=True), max_tokens=64)
    assert ran.generation.error is None
    assert [request.is_suspect for request in ran.router.requests] == [False, True, False, True]
    failed = Outcome.FAILED
    assert ran.router.outcomes == [failed, Outcome.SETTLED, failed, failed, Outcome.FINISHED]


async def test_a_lost_connection_to_a_live_worker_makes_no_suspect() -> None:
    back = frozenset({f"inc-{number}" for number in range(1, 5)})
    ran = await run(*[is_lost("broken")] * 4, says(5, ends=True), back=back)
    assert ran.generation.error is None
    assert not any(request.is_suspect for request in ran.router.requests)


async def test_a_worker_that_only_stood_still_convicts_nothing() -> None:
    ran = await run(is_lost("hang"), is_lost("broken"), says(5, ends=True), back=frozenset({"inc-1"}))
    assert ran.generation.error is None
    assert [request.is_suspect for request in ran.router.requests] == [False, True, True]


async def test_a_killed_worker_and_one_that_was_stopped_at_the_same_moment_convict_nothing() -> None:
    ran = await run(is_lost("broken"), STOPPED, says(5, ends=True))
    assert ran.generation.error is None
    assert [request.is_suspect for request in ran.router.requests] == [False, True, True], "the first loss still counts"
    assert ran.router.requests[2].hung_incarnations == {"inc-2"}
    ran = await run(STOPPED, is_lost("broken"), says(5, ends=True))
    assert [request.is_suspect for request in ran.router.requests] == [False, False, True]


async def test_workers_that_one_after_the_other_fall_silent_at_a_request_are_held_against_it() -> None:
    ran = await run(*[STOPPED] * 4)
    assert isinstance(ran.generation.error, PromptRefused)
    assert [request.is_suspect for request in ran.router.requests] == [False, False, False, True]


async def test_a_crash_before_a_word_of_the_worker_counts() -> None:
    ran = await run(*[is_lost("broken", was_taken=False)] * 2)
    assert isinstance(ran.generation.error, PromptRefused), "a native crash may be quicker than any message"


async def test_a_worker_that_is_named_again_is_avoided_no_longer() -> None:
    router = FakeRouter(names=[1, 1, 2])
    ran = await run(is_lost("hang"), says(*range(5), slowly=True), says(5, ends=True), router=router, max_tokens=64)
    assert [request.hung_incarnations for request in ran.router.requests] == [set(), {"inc-1"}, set()]
    assert ran.router.requests[2].excluded_incarnations == {"inc-1"}, "the second time it was gone, not still"


async def test_a_request_that_two_workers_contradict_is_refused() -> None:
    def skips(sink: SteppedSink, submission: Submission) -> None:
        sink.on_output(output(submission.request.key, 3, (9,)))

    ran = await run(skips, skips)
    assert isinstance(ran.generation.error, Overloaded)
    assert [session.cancelled[-1][1] for session in ran.sessions.opened] == [{}, {}], "the workers are told"


def after(seconds: float, play: Play, clock: FakeClock) -> Play:
    """The worker does it later."""

    def later(sink: SteppedSink, submission: Submission) -> None:
        clock.advance(seconds)
        play(sink, submission)

    return later


async def test_busy_and_unreachable_wait_and_only_the_latter_excludes() -> None:
    clock = FakeClock()
    ran = await run(after(0.5, fails(Busy("full")), clock), None, says(5, ends=True), clock=clock)
    assert ran.generation.error is None
    first, second, third = ran.router.requests
    assert (first.waited_ms, second.waited_ms, third.waited_ms) == (0, 500, 500)
    assert (second.excluded_incarnations, third.excluded_incarnations) == (frozenset(), {"inc-2"})


async def test_drain_goes_elsewhere_without_counting_as_a_death() -> None:
    leaving = fails(Draining("leaving"))
    ran = await run(leaving, leaving, leaving, says(5, ends=True))
    assert ran.generation.error is None
    assert ran.router.requests[-1].excluded_incarnations == {"inc-1", "inc-2", "inc-3"}


async def test_the_kv_of_a_stream_that_was_handed_back_is_fetched_where_it_is() -> None:
    def hands_back(sink: SteppedSink, submission: Submission) -> None:
        says(5, loss="drain")(sink, submission)

    ran = await run(hands_back, fails(Draining("leaving, too")), says(6), says(7, ends=True))
    assert ran.generation.error is None
    sources = [tuple(ref.incarnation for ref in submission.prefill) for submission in ran.submissions]
    assert [names[:1] for names in sources] == [sources[0][:1], ("inc-1",), ("inc-1",), sources[0][:1]]
    assert all(len(names) <= 2 for names in sources)


async def test_a_worker_that_answered_busy_is_closed_by_the_version_of_its_status() -> None:
    ran = await run(fails(Busy("full")), says(5), says(6, ends=True))
    first, second, third = ran.router.requests
    assert (first.refusals, second.refusals, third.refusals) == ({}, {"inc-1": 10}, {"inc-1": 10})
    assert [request.num_emitted_tokens for request in ran.router.requests] == [0, 0, 1]
    assert (second.is_move, second.is_resumed, third.is_resumed) == (True, False, True)
    assert second.excluded_incarnations == frozenset()


async def test_progress_ends_the_wait_so_far() -> None:
    clock = FakeClock()
    busy = after(0.5, fails(Busy("full")), clock)
    ran = await run(busy, says(5), says(6, ends=True), clock=clock)
    assert [request.waited_ms for request in ran.router.requests] == [0, 500, 0]


async def test_a_lost_worker_begins_a_new_wait_at_the_router_but_not_a_new_life() -> None:
    clock = FakeClock()
    lost = after(7.0, is_lost("hang"), clock)
    ran = await run(lost, says(6, ends=True), clock=clock)
    assert [request.waited_ms for request in ran.router.requests] == [0, 0]
    assert ran.router.timeouts_s == [10.0, 3.0]


async def test_wall_time_without_output_ends_a_request_wherever_it_was_spent() -> None:
    clock = FakeClock()
    ran = await run(*[after(4.0, fails(Busy("full")), clock)] * 9, clock=clock)
    assert isinstance(ran.generation.error, QueueTimeout)
    assert ran.router.timeouts_s == [10.0, 6.0, 2.0], "12 s at workers, none of it in the router's queue"


async def test_output_begins_a_new_life() -> None:
    clock = FakeClock()
    settles = says(*range(5), slowly=True)
    ran = await run(*[after(8.0, settles, clock)] * 3, says(6, ends=True), clock=clock, max_tokens=64)
    assert ran.router.timeouts_s == [10.0] * 4


async def test_a_refusal_of_the_worker_is_the_clients_answer() -> None:
    ran = await run(fails(BadRequest("no", param="x")))
    assert isinstance(ran.generation.error, BadRequest)
    assert ran.router.outcomes == [Outcome.FAILED]


async def test_a_bug_is_reported_by_its_id() -> None:
    router = FakeRouter(answers=[RuntimeError("a bug")])  # type: ignore[list-item]
    ran = await run(router=router)
    assert isinstance(ran.generation.error, Internal)
    assert "a bug" not in ran.generation.error.message


async def test_the_receipt_is_kept_whole_and_prompt_logprobs_are_asked_for_once() -> None:
    scores = (PositionLogprobs(TokenLogprob(2, -0.5, 1)),)

    def first(sink: SteppedSink, submission: Submission) -> None:
        receipt = Receipt(num_cached_tokens=99, queue_ns=5, prefill_worker_id="p", numerics_id="cpu")
        sink.on_output(output(submission.request.key, 0, (5,), receipt=receipt, prompt_logprobs=scores))
        sink.on_lost("broken")

    ran = await run(first, says(6, ends=True), num_prompt_logprobs=1)
    transcript = ran.generation.transcript
    assert [s.request.sampling.num_prompt_logprobs for s in ran.submissions] == [1, None]
    assert transcript.prompt_logprobs == scores
    assert transcript.receipt is not None
    assert (transcript.receipt.queue_ns, transcript.receipt.prefill_worker_id) == (5, "p")
    assert transcript.num_cached_tokens == 3, "at most the prompt"


@pytest.mark.parametrize(
    ("numerics", "is_exact"),
    [
        (("cpu/f/a.r1+exact", "cpu/f/a.r1+exact"), True),
        (("cpu/f/a.r1+exact", "cpu/f/a.r2+exact"), False),
        (("cuda/f/a.r1+batched", "cuda/f/a.r1+batched"), False),
    ],
)
async def test_the_receipt_says_whether_all_attempts_computed_the_same_bits(
    numerics: tuple[str, str], is_exact: bool
) -> None:
    def attempt(numerics_id: str, *, is_lost: bool) -> Play:
        def emit(sink: SteppedSink, submission: Submission) -> None:
            receipt, start = Receipt(numerics_id=numerics_id), len(submission.request.choices[0].emitted_ids)
            reason = None if is_lost else LENGTH
            sink.on_output(output(submission.request.key, start, (5,), reason, receipt=receipt))
            if is_lost:
                sink.on_lost("broken")

        return emit

    ran = await run(attempt(numerics[0], is_lost=True), attempt(numerics[1], is_lost=False))
    section = ran.generation.section()
    assert section["num_attempts"] == 2
    assert (section["numerics_id"], section["is_exact"]) == (numerics[0], is_exact)


async def test_the_deadline_travels_until_there_is_output_and_ends_a_wait_before_it() -> None:
    ran = await run(fails(Busy("full")), says(5), says(6, ends=True), deadline_s=1e9)
    assert [request.terms.deadline_s for request in ran.router.requests] == [1e9, 1e9, None]
    assert [submission.request.terms.deadline_s for submission in ran.submissions] == [1e9, 1e9, None]
    late = await run(*[fails(Busy("full"))] * 9, deadline_s=0.0)
    assert isinstance(late.generation.error, QueueTimeout)


async def test_the_time_of_the_whole_answer_ends_a_stream_in_the_middle_and_cancels_it_there() -> None:
    clock = FakeClock()

    def begins(sink: SteppedSink, submission: Submission) -> None:
        sink.on_output(output(submission.request.key, 0, (5,)))

    ran = await run(begins, clock=clock, end_s=clock.now() + 0.05)
    assert isinstance(ran.generation.error, DeadlinePassed)
    assert ran.generation.transcript.choices[0].ids == [5], "what came stays with the client"
    assert ran.router.outcomes == [Outcome.CANCELLED]
    assert len(ran.sessions.opened[0].cancelled) == 1
    (submission,) = ran.submissions
    assert submission.request.terms.end_s == ran.router.requests[0].terms.end_s == clock.now() + 0.05


async def test_recovery_keeps_the_time_of_the_whole_answer() -> None:
    ran = await run(says(*range(5), slowly=True), says(6, ends=True), deadline_s=1e9, end_s=2e9, max_tokens=64)
    assert [request.terms.deadline_s for request in ran.router.requests] == [1e9, None]
    assert [submission.request.terms.end_s for submission in ran.submissions] == [2e9, 2e9]


async def test_time_that_ends_before_the_first_token_is_a_timeout_of_the_queue() -> None:
    clock = FakeClock()
    ran = await run(lambda sink, submission: None, clock=clock, end_s=clock.now() + 0.05)
    assert isinstance(ran.generation.error, QueueTimeout)
