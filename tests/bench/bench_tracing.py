"""What traces cost a request that has none: CPU time of every call of this kind, in all processes, in microseconds.

    python -m pytest -m bench -s tests/bench/bench_tracing.py

The calls are those of a completion with one attempt and one hand-off; per token there are none.  What is measured is
the time of the calling thread, so other work on the machine counts little.  On 2 shared x86-64 cores:
no endpoint 41, not sampled 49, traced 629, of some 60,000 that the platform uses for a request of 64 tokens.
"""

import json
import platform
import statistics
import time
from random import Random

import pytest
from opentelemetry.sdk.trace import TracerProvider

from stratos.api.common.v1 import common_pb2
from stratos.core.generation import Submission
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.trace import TraceContext
from stratos.rpc.codec.trace import trace_from_pb, trace_to_part
from stratos.rpc.tracing import SpanKind, Tracing
from stratos.worker.decode.spans import describe_decode
from stratos.worker.records import RequestRecord
from stratos_gateway.http.exchange import Exchanges

pytestmark = pytest.mark.bench

NUM_REQUESTS, NUM_ROUNDS = 400, 9
RECORD = RequestRecord(
    Submission(
        model_digest="m",
        request=EngineRequest(
            key=RequestKey("gen-1", 0),
            prompt_ids=(1,),
            choices=(ChoiceState(index=0),),
            sampling=SamplingParams(max_tokens=1),
            seed=1,
        ),
    ),
    "cpu",
)


def hop(tracing: Tracing, name: str, trace: TraceContext, kind: SpanKind) -> TraceContext:
    """A span and what it is given, and the context as a message for the next process and back."""
    with tracing.span(name, trace, kind=kind, generation_id="gen-1", attempt=0) as span:
        span.set(worker_id="decode-0", outcome="finished", cause=None, output_tokens=64)
    part = trace_to_part(span.trace)
    return span.trace if part is None else trace_from_pb(common_pb2.TraceContext(**part))


def serve(tracing: Tracing, exchanges: Exchanges) -> None:
    """What one request does for its trace."""
    scope = {"type": "http", "method": "POST", "headers": [(b"x-request-id", b"ticket-1")]}
    with exchanges.open(scope, None).span as server:  # type: ignore[arg-type]
        hop(tracing, "Schedule", hop(tracing, "place", server.trace, SpanKind.CLIENT), SpanKind.SERVER)
        attempt = hop(tracing, "attempt", server.trace, SpanKind.CLIENT)
        hop(tracing, "prefill", hop(tracing, "fetch", attempt, SpanKind.CLIENT), SpanKind.SERVER)
        with tracing.span("decode", attempt, kind=SpanKind.SERVER, begin_s=1.0, generation_id="gen-1") as decode:
            describe_decode(tracing, decode, RECORD)
        server.set(operation="chat", model="base", input_tokens=128, output_tokens=64, cached_tokens=0)
        server.rename("POST /v1/chat/completions")
        server.set(http_method="POST", http_route="/v1/chat/completions", http_status=200)


def cpu_us(tracing: Tracing, sample_ratio: float) -> float:
    """Median over rounds of the CPU time of one request."""
    exchanges = Exchanges(tracing, sample_ratio, Random(0))
    rounds = []
    for _ in range(NUM_ROUNDS):
        begin_ns = time.thread_time_ns()
        for _ in range(NUM_REQUESTS):
            serve(tracing, exchanges)
        rounds.append((time.thread_time_ns() - begin_ns) / NUM_REQUESTS / 1000)
    return statistics.median(rounds)


@pytest.mark.parametrize(
    ("case", "tracing", "sample_ratio"),
    [
        ("no endpoint", Tracing(), 1.0),
        ("not sampled", Tracing(TracerProvider(shutdown_on_exit=False)), 0.0),
        ("traced, export left out", Tracing(TracerProvider(shutdown_on_exit=False)), 1.0),
    ],
)
def test_cost_of_a_request(case: str, tracing: Tracing, sample_ratio: float) -> None:
    cost = {"case": case, "cpu_us_per_request": round(cpu_us(tracing, sample_ratio), 1), "machine": platform.machine()}
    print("\n" + json.dumps(cost))
