"""The rest of an answer as routers and workers see it."""

from __future__ import annotations

from stratos.common.clock import FakeClock
from stratos.common.errors import QueueTimeout
from stratos.core.features import Feature
from stratos.core.generation import Submission
from tests.support.fakes.gateway_fakes import SteppedSink, output
from tests.unit.gateway.generation.test_generation import run, says


async def test_the_rest_of_an_answer_is_a_new_request_until_it_has_a_token() -> None:
    """It pays for its prompt, keeps its deadline and its plan's share, and its times are those of its own tokens."""
    clock = FakeClock()

    def talks(sink: SteppedSink, submission: Submission) -> None:
        for place, token_id in enumerate((7, 8, 9), 4):
            sink.on_output(output(submission.request.key, place, (token_id,)))
            clock.advance(0.5)
        sink.on_lost("broken")

    ran = await run(talks, says(10, ends=True), clock=clock, deadline_s=2000.0, prior=(3, 4, 5, 6))
    assert ran.generation.error is None
    assert ran.generation.transcript.choices[0].ids == [3, 4, 5, 6, 7, 8, 9, 10]
    first, second = ran.router.requests
    assert (first.is_resumed, first.num_emitted_tokens, first.terms.deadline_s) == (False, 0, 2000.0)
    assert (first.num_prompt_tokens, first.max_output_tokens_total) == (3 + 4, 8 - 4)
    assert Feature.RESUME in first.required_features
    assert (second.is_resumed, second.num_emitted_tokens, second.terms.deadline_s) == (True, 3, None)
    assert (second.num_prompt_tokens, second.max_output_tokens_total) == (3 + 7, 1)
    assert [s.request.is_resumed for s in ran.submissions] == [False, True]
    assert [s.request.terms.deadline_s for s in ran.submissions] == [2000.0, None]
    times = ran.generation.transcript.times(clock.now())
    assert times.itl_us == 500_000, "1.5 s for the three tokens behind the first one"
    late = await run(None, clock=FakeClock(3000.0), end_s=2000.0, prior=(3, 4))
    assert isinstance(late.generation.error, QueueTimeout)
