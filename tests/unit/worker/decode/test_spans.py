"""Spans of requests at a decode worker: finished, refused by the engine, cancelled, and not traced."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stratos.common.clock import SystemClock
from stratos.common.errors import Busy
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.trace import TraceContext
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.rpc.tracing import Tracing
from stratos.worker.decode.request_table import RequestTable
from stratos.worker.decode.session import OutputSession
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.records import PrefillPath, PromptOrigin, RequestRecord, Submission
from stratos.worker.status import StatusFeed
from tests.support.worlds.usage_counts import empty_log

PARENT_ID = "b7ad6b7169203331"
SAMPLED = TraceContext(traceparent=f"00-0af7651916cd43dd8448eb211c80319c-{PARENT_ID}-01", http_request_id="req-1")
STEP_S = 0.01
CLOCK_SLACK_NS = 1_000_000


class Policy:
    """Computes every prompt here, unless it has an error to raise."""

    def __init__(self, engine: ThreadEngine) -> None:
        self._engine = engine
        self.error: Exception | None = None

    async def prefill(self, record: RequestRecord, stack: AsyncExitStack) -> None:
        if self.error is not None:
            raise self.error
        record.origin = PromptOrigin(path=PrefillPath.LOCAL_NO_ENDPOINT)
        await self._engine.add(record.submission.request)


class Bench:
    """A traced table over a fake engine."""

    def __init__(self) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.engine = ThreadEngine(EngineCore(FakeRunner(FakeConfig(step_s=STEP_S)), SchedulerConfig()))
        self.policy, self.clock = Policy(self.engine), SystemClock()
        tracing = Tracing(provider)
        self.table = RequestTable(
            self.engine,
            self.policy,
            self.clock,
            tracing,
            max_requests=8,
            orphan_ttl_s=5.0,
            news=StatusFeed(),
            usage=empty_log(self.clock),
        )
        self.engine.subscribe(self.table.on_step)

    def submit(self, *, max_tokens: int = 5, trace: TraceContext = SAMPLED) -> None:
        request = EngineRequest(
            key=RequestKey("gen-1", 3),
            prompt_ids=tuple(range(10)),
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(max_tokens=max_tokens),
            seed=0,
            terms=RequestTerms(arrival_s=self.clock.now()),
        )
        self.table.submit(
            OutputSession(self.engine, self.clock), Submission(request=request, model_digest="m", trace=trace)
        )

    async def idle(self) -> None:
        while self.table.num_open_tasks:  # noqa: ASYNC110 - the table has no event for it
            await asyncio.sleep(0.002)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.engine.start()
    yield made
    await made.table.close()
    await made.engine.close()


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return format(span.parent.span_id, "016x")


async def test_a_finished_request_has_the_engines_steps_in_its_span(bench: Bench) -> None:
    begin_ns = time.time_ns()
    bench.submit()
    await bench.idle()
    spans = bench.spans()
    decode, prefill, tokens = spans["decode"], spans["engine.prefill"], spans["engine.decode"]
    assert parent_of(decode) == PARENT_ID
    own_id = format(decode.context.span_id, "016x")
    assert parent_of(prefill) == parent_of(tokens) == own_id
    ends = [(span.start_time or 0, span.end_time or 0) for span in (decode, prefill, tokens)]
    times = [begin_ns, ends[0][0], *ends[1], *ends[2], time.time_ns()]
    # Each is converted from the monotonic clock by itself, which costs some nanoseconds of precision.
    assert all(later - earlier > -CLOCK_SLACK_NS for earlier, later in itertools.pairwise(times)), times
    assert ends[2][1] - ends[2][0] >= 4 * STEP_S * 1e9 - CLOCK_SLACK_NS
    found = dict(decode.attributes or {})
    assert 0 < found.pop("stratos.queue_ns") <= found.pop("stratos.ttft_ns")  # type: ignore[operator]
    assert found == {
        "stratos.request_id": "req-1",
        "stratos.generation_id": "gen-1",
        "stratos.attempt": 3,
        "stratos.prefill_path": "local_no_endpoint",
        "stratos.cached_tokens": 0,
        "stratos.transferred_tokens": 0,
        "stratos.computed_tokens": 10,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }


async def test_a_request_that_fails_has_its_errors_code(bench: Bench) -> None:
    bench.policy.error = Busy("no KV blocks are free")
    bench.submit()
    await bench.idle()
    (span,) = bench.exporter.get_finished_spans()
    assert not span.status.is_ok
    assert dict(span.attributes or {})["error.type"] == "busy"


async def test_a_cancelled_request_ends_its_span(bench: Bench) -> None:
    bench.submit(max_tokens=3000)
    while bench.engine.status().num_running == 0:  # noqa: ASYNC110 - polls the engine's thread
        await asyncio.sleep(0.002)
    bench.table.cancel(RequestKey("gen-1", 3))
    await bench.idle()
    assert dict(bench.spans()["decode"].attributes or {})["error.type"] == "cancelled"


async def test_a_request_without_a_trace_has_no_span(bench: Bench) -> None:
    bench.submit(trace=TraceContext(http_request_id="req-2"))
    await bench.idle()
    assert not bench.exporter.get_finished_spans()
