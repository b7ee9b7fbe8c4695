"""Traces of `stratos up`: real processes export to a collector inside the test; a log line names its request."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from typing import Any

import httpx
import pytest

from tests.support.observed.span_trees import assert_sound, tree
from tests.support.servers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.waiting import LIMIT_S, rounds, wait_until
from tests.support.worlds.platform_process import PlatformProcess

STEP_S = 0.01
NUM_SPANS = 10
"""Spans of a completion whose prompt is handed off."""
PROMPT = "the quick brown fox jumps over the lazy dog and runs away from here"
TRACE_ID, CLIENT_SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GATEWAY, ROUTER = "stratos-gateway", "stratos-router"
PREFILL, DECODE = "stratos-prefill-worker", "stratos-decode-worker"


def post(
    platform: PlatformProcess, route: str, request_id: str, *, traceparent: str = "", **body: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {platform.api_key}", "x-request-id": request_id}
    headers |= {"traceparent": traceparent} if traceparent else {}
    answer = httpx.post(
        f"{platform.base_url}/{route}", headers=headers, json={"model": "base", **body}, timeout=LIMIT_S
    )
    assert answer.status_code == 200, answer.text
    return answer


def complete(platform: PlatformProcess, request_id: str, *, traceparent: str = "") -> httpx.Response:
    """Twelve tokens for a prompt of its own, so that no prefix cache spares the hand-off."""
    body = {"prompt": f"{request_id}, {PROMPT}", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return post(platform, "completions", request_id, traceparent=traceparent, **body)


def trace_of(collector: OtlpReceiver, answer: httpx.Response, num_spans: int = NUM_SPANS) -> list[ReceivedSpan]:
    """All spans of the trace that an answer names, once they have come."""
    trace_id = answer.headers["traceparent"].split("-")[1]
    wait_until(lambda: len(collector.spans(trace_id)) >= num_spans, what=f"{num_spans} spans of a trace")
    return collector.spans(trace_id)


def by_name(spans: list[ReceivedSpan], service: str, name: str) -> ReceivedSpan:
    (found,) = [span for span in spans if (span.service, span.name) == (service, name)]
    return found


def test_one_trace_from_the_http_request_to_the_engines_steps(
    platform: PlatformProcess, collector: OtlpReceiver
) -> None:
    answer = complete(platform, "trace-plain")
    spans = trace_of(collector, answer)
    assert_sound(spans)
    assert tree(spans) == {
        "gateway POST /v1/completions": {
            "gateway place": {"router Schedule": {}},
            "gateway attempt": {
                "decode-worker fetch": {"prefill-worker prefill": {"prefill-worker engine.prefill": {}}},
                "decode-worker decode": {"decode-worker engine.prefill": {}, "decode-worker engine.decode": {}},
            },
        }
    }
    assert {span.attributes["stratos.request_id"] for span in spans} == {"trace-plain"}
    assert not [span for span in spans if span.is_failed]
    assert "quick brown fox" not in repr(spans)
    usage = answer.json()["usage"]
    server, attempt = by_name(spans, GATEWAY, "POST /v1/completions"), by_name(spans, GATEWAY, "attempt")
    fetch, decode = by_name(spans, DECODE, "fetch"), by_name(spans, DECODE, "decode")
    assert (server.kind, by_name(spans, ROUTER, "Schedule").kind) == ("server", "server")
    assert (attempt.kind, fetch.kind) == ("client", "client")
    assert server.span_id == answer.headers["traceparent"].split("-")[2]
    assert server.attributes["gen_ai.request.model"] == "base"
    assert server.attributes["gen_ai.operation.name"] == "text_completion"
    assert server.attributes["gen_ai.provider.name"] == "stratosserve"
    assert server.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert decode.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 12
    assert (attempt.attributes["stratos.attempt"], attempt.attributes["stratos.outcome"]) == (0, "finished")
    assert decode.attributes["stratos.prefill_path"] == "handoff"
    assert fetch.attributes["stratos.source_worker_id"] == "prefill-0"
    assert fetch.attributes["stratos.outcome"] == "committed"
    tokens = by_name(spans, DECODE, "engine.decode")
    assert tokens.end_ns - tokens.begin_ns >= 11 * STEP_S * 1e9 - 1e6, "eleven steps follow the first token"
    assert 0 < decode.attributes["stratos.ttft_ns"] < decode.end_ns - decode.begin_ns


def test_every_span_belongs_to_a_request(platform: PlatformProcess, collector: OtlpReceiver) -> None:
    answers = [complete(platform, f"trace-many-{number}") for number in range(3)]
    for answer in answers:  # they are exported together, and each process exports once a second
        trace_of(collector, answer)
    names = {span.name for span in collector.spans() if not span.name.startswith(("POST /v1/", "GET /v1/streams/"))}
    assert names <= {
        *("place", "Schedule", "attempt", "fetch", "prefill", "decode", "embed", "engine.prefill", "engine.decode")
    }, "a Session, a status stream or a health check is no request"
    assert all(span.attributes["stratos.request_id"] for span in collector.spans())


def killed_under_stream(platform: PlatformProcess, collector: OtlpReceiver) -> tuple[list[ReceivedSpan], str]:
    """The spans of a stream whose decode worker was killed in its middle, and who was killed.

    Where the stream was over before, on a slow machine, the next one is tried.
    """
    while True:
        trace_id, killed = kill_under_stream(platform, collector)
        wait_until(partial(has_ended, collector, trace_id), what="the spans that end last")
        wait_until(partial(is_live, platform, killed), what="the return of the killed worker")
        spans = collector.spans(trace_id)
        if [span.is_failed for span in spans if span.name == "attempt"] == [True, False]:
            return spans, killed


def has_ended(collector: OtlpReceiver, trace_id: str) -> bool:
    return {span.name for span in collector.spans(trace_id)} >= {"decode", "POST /v1/completions"}


def is_live(platform: PlatformProcess, name: str) -> bool:
    return any(worker["worker_id"] == name and worker["is_live"] for worker in platform.status()["workers"])


def kill_under_stream(platform: PlatformProcess, collector: OtlpReceiver) -> tuple[str, str]:
    """Kill the decode worker of a stream whose fetch it has exported; returns the trace, and who was killed.

    A stream that ends before, on a slow machine, is followed by another one.
    """
    headers = {"authorization": f"Bearer {platform.api_key}", "x-request-id": "trace-killed"}
    body = {"model": "base", "max_tokens": 400, "temperature": 0, "stream": True, "ignore_eos": True}
    url, killed = f"{platform.base_url}/completions", ""
    for number in rounds("a worker seen under a stream whose fetch is exported"):
        text = {"prompt": f"killed {number}, {PROMPT}"}
        with httpx.stream("POST", url, headers=headers, json=body | text, timeout=None) as answer:
            trace_id = answer.headers["traceparent"].split("-")[1]
            for place, _ in enumerate(answer.iter_lines()):
                if (
                    not killed
                    and place < 400
                    and place % 20 == 0
                    and [s for s in collector.spans(trace_id) if s.name == "fetch"]
                ):
                    decode = [w for w in platform.status()["workers"] if w["role"] == "decode"]
                    running = [worker for worker in decode if worker.get("num_running")]
                    if running:
                        killed = running[0]["worker_id"]
                        os.kill(platform.processes()[killed]["pid"], signal.SIGKILL)
        if killed:
            break
    return trace_id, killed


@pytest.mark.slow
def test_a_killed_worker_leaves_one_trace_with_a_second_attempt(
    platform: PlatformProcess, collector: OtlpReceiver
) -> None:
    spans, killed = killed_under_stream(platform, collector)
    assert_sound(spans)
    (root,) = tree(spans).values()
    assert list(root) == ["gateway place", "gateway attempt", "gateway place #2", "gateway attempt #2"]
    assert "decode-worker decode" not in root["gateway attempt"], "it was under way when its process was killed"
    assert root["gateway attempt #2"]["decode-worker decode"]
    first, second = [span for span in spans if span.name == "attempt"]
    assert (first.attributes["stratos.attempt"], second.attributes["stratos.attempt"]) == (0, 1)
    assert first.attributes["stratos.worker_id"] == killed != second.attributes["stratos.worker_id"]
    assert first.is_failed
    assert first.attributes["stratos.cause"] in ("broken", "hang")
    assert not second.is_failed
    assert sum(span.attributes["gen_ai.usage.output_tokens"] for span in (first, second)) == 400
    assert {span.attributes["stratos.request_id"] for span in spans} == {"trace-killed"}
    gateways = [text for name, text in logs(platform).items() if name.startswith("gateway")]
    lines = [line for text in gateways for line in text.splitlines() if "goes on elsewhere" in line]
    assert any("trace-killed" in line for line in lines)


def test_a_clients_trace_is_continued(platform: PlatformProcess, collector: OtlpReceiver) -> None:
    answer = complete(platform, "trace-client", traceparent=f"00-{TRACE_ID}-{CLIENT_SPAN_ID}-01")
    assert answer.headers["traceparent"].startswith(f"00-{TRACE_ID}-")
    spans = trace_of(collector, answer)
    assert_sound(spans, parent_id=CLIENT_SPAN_ID)
    assert list(tree(spans, CLIENT_SPAN_ID)) == ["gateway POST /v1/completions"]


def test_an_unsampled_trace_makes_no_span(platform: PlatformProcess, collector: OtlpReceiver) -> None:
    unsampled = complete(platform, "trace-unsampled", traceparent=f"00-{TRACE_ID[::-1]}-{CLIENT_SPAN_ID}-00")
    assert "traceparent" not in unsampled.headers
    trace_of(collector, complete(platform, "trace-after"))  # what came before it was exported, too
    assert not collector.spans(TRACE_ID[::-1])
    assert not collector.spans(request_id="trace-unsampled")


def logs(platform: PlatformProcess) -> dict[str, str]:
    """Logs of every process, by its name."""
    return {path.stem: path.read_text() for path in platform.run_dir().rglob("*.log")}


def test_a_clients_request_id_is_found_in_the_logs_of_all_that_served_it(platform: PlatformProcess) -> None:
    answer = complete(platform, "ticket-4711:a.b")
    assert answer.headers["x-request-id"] == "ticket-4711:a.b"

    def found() -> set[str]:
        return {re.sub(r"-\d$", "", name) for name, text in logs(platform).items() if "ticket-4711:a.b" in text}

    wait_until(lambda: found() >= {"gateway", "router", "prefill", "decode"}, what="the id in all logs")
    assert not any("quick brown fox" in text for text in logs(platform).values())


def test_an_id_that_is_not_fit_for_logs_is_replaced(platform: PlatformProcess) -> None:
    answer = complete(platform, "ticket with spaces")
    assert answer.headers["x-request-id"].startswith("req-")
    wait_until(lambda: answer.headers["x-request-id"] in logs(platform)["router-0"], what="our own id in the logs")
    assert not any("ticket with spaces" in text for text in logs(platform).values())


def test_embeddings_have_a_trace_too(platform: PlatformProcess, collector: OtlpReceiver) -> None:
    answer = post(platform, "embeddings", "trace-embeddings", input=["one", "two"])
    spans = trace_of(collector, answer, num_spans=5)
    assert_sound(spans)
    assert tree(spans) == {
        "gateway POST /v1/embeddings": {
            "gateway place": {"router Schedule": {}},
            "gateway attempt": {"prefill-worker embed": {}},
        }
    }
    assert by_name(spans, PREFILL, "embed").attributes["stratos.inputs"] == 2
