"""Lines of a slice as they are read, and one whose request fails by a fault of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import orjson
import pytest
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, ConcurrencyLimited, Overloaded
from stratos.core.tenant import Tenant
from stratos.rpc.tracing import TRACING_OFF
from stratos_gateway.answering.request import BatchLine
from stratos_gateway.anthropic.errors import MESSAGE_ERRORS
from stratos_gateway.batches.calls import LineAnswer, LineCalls
from stratos_gateway.batches.gate import LineGate
from stratos_gateway.batches.slices import BatchWork, SliceIndex, answer_line
from stratos_gateway.files.lines import LineCheck
from stratos_gateway.http.errors import OPENAI_ERRORS, ErrorForm
from stratos_gateway.http.exchange import TRACE_ALL, Exchanges
from stratos_gateway.metrics import GatewayMetrics

URL = "/v1/completions"


def line(number: int) -> bytes:
    return orjson.dumps({"custom_id": f"c{number}", "method": "POST", "url": URL, "body": {"model": "base"}})


@pytest.mark.parametrize("space", [b"\r", b" ", b"\r\n"])
async def test_a_slice_has_the_lines_that_the_upload_has_counted(space: bytes) -> None:
    """A carriage return is white space of JSON, and ends no line."""
    end = space if space.endswith(b"\n") else b"\n"
    inside = b"," + space.strip(b"\n") + b'"url"'
    content = b"".join(line(number).replace(b',"url"', inside) + end for number in range(60))
    check = LineCheck(100)
    check.feed(content)
    check.finish()

    async def read(tenant_id: str, file: Any, begin: int, end: int) -> AsyncIterator[bytes]:
        yield content[begin:end]

    store: Any = SimpleNamespace(files=SimpleNamespace(read=read))
    index = SliceIndex.parse(check.index, len(content))
    work = BatchWork("acme", cast("Any", None), index, store, cast("Any", None))
    found = [await work.lines(number) for number in range(len(index.counts))]
    assert [len(lines) for lines in found] == index.counts == [50, 10]
    assert [row["custom_id"] for lines in found for row in lines] == [f"c{number}" for number in range(60)]


class Endpoint:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def resume(self, *asked: Any) -> None:
        raise self._error


async def called(error: Exception, form: ErrorForm = OPENAI_ERRORS) -> LineAnswer:
    exchanges = Exchanges(TRACING_OFF, TRACE_ALL, Random(1), FakeClock())
    calls = LineCalls({URL: cast("Any", Endpoint(error))}, exchanges, {URL: form})
    own = BatchLine(name="batch_1-0", epoch=1, created_unix_s=5, arrived_unix_ms=7)
    return await calls.call(Tenant(name="acme"), URL, {"model": "base"}, own)


async def test_a_fault_of_ours_is_the_answer_of_its_line_alone(caplog: pytest.LogCaptureFixture) -> None:
    answer = await called(KeyError("secret prompt"))
    assert (answer.status, answer.is_ok) == (500, False)
    assert "secret" not in str(answer.body)
    assert "in line batch_1-0" in caplog.text


async def test_a_refused_line_has_the_form_of_its_route() -> None:
    error = BadRequest("no such field", param="a")
    assert (await called(error)).body["error"]["type"] == "invalid_request_error"
    answer = await called(error, MESSAGE_ERRORS)
    assert (answer.status, answer.body["type"], answer.body["request_id"]) == (400, "error", "batch_1-0")
    assert (await called(KeyError("x"), MESSAGE_ERRORS)).body["error"]["type"] == "api_error"


@pytest.mark.parametrize("error", [Overloaded("full"), RedisError("away"), ExceptionGroup("", [OSError()])])
async def test_what_may_go_well_later_gives_the_line_up(error: Exception) -> None:
    with pytest.raises(type(error)):
        await called(error)


@pytest.mark.parametrize(
    ("error", "limit"), [(Overloaded("full", after_s=0.01), 2), (ConcurrencyLimited("its limit", after_s=0.01), 4)]
)
async def test_a_limit_of_a_tenant_bounds_no_lines_of_others(error: Exception, limit: int) -> None:
    class Calls:
        errors: ClassVar[list[Exception]] = [error]

        async def call(self, *asked: Any) -> LineAnswer:
            if self.errors:
                raise self.errors.pop()
            return LineAnswer(500, {})

    gate = LineGate(32, FakeClock(), GatewayMetrics(CollectorRegistry()))
    own = BatchLine(name="batch_1-0", epoch=1, created_unix_s=5, arrived_unix_ms=5000)
    await answer_line(cast("Any", Calls()), gate, Tenant(name="acme"), {"url": URL, "body": {}}, lambda place: own)
    assert gate.limit == limit
