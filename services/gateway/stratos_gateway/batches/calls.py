"""One line of a batch as a request of its route, without a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from logging import getLogger
from types import MappingProxyType
from typing import Any

import orjson
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.types import Message

from stratos.common.bugs import report_bug
from stratos.common.errors import NotFound, Retryable, StratosError
from stratos.core.tenant import Tenant
from stratos_gateway.answering.endpoint import Endpoint
from stratos_gateway.answering.request import LINE, BatchLine, ignored_names
from stratos_gateway.http.errors import OPENAI_ERRORS, ErrorForm, public_error
from stratos_gateway.http.exchange import Exchanges

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """Answer to a line."""

    status: int
    body: Any
    ignored: str = ""
    """Fields of the line that mean nothing here, as the route's header names them."""

    @property
    def is_ok(self) -> bool:
        """It is no error."""
        return self.status < HTTPStatus.BAD_REQUEST


class LineCalls:
    """Shared by all lines of the process.

    Args:
        endpoints: routes that lines may name, by path.
        exchanges: records of requests.
        forms: of errors, by path, where they are not OpenAI's.
        billed: waits until the ledger has what was answered.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint[Any]],
        exchanges: Exchanges,
        forms: Mapping[str, ErrorForm] = MappingProxyType({}),
        billed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._exchanges = exchanges
        self._forms = forms
        self._billed = billed

    async def call(self, tenant: Tenant, url: str, body: dict[str, Any], line: BatchLine) -> LineAnswer:
        """Answer a line; an error for good is an answer as well, and so is a fault of ours.

        Raises:
            Retryable: not now.
        """
        try:
            endpoint = self._endpoints.get(url)
            if endpoint is None:
                raise NotFound("there is no such route")
            return await self._answer(endpoint, tenant, url, body, line)
        except (Retryable, RedisError, ExceptionGroup):
            raise
        except StratosError as error:
            return self.refusal(error, url, line.name)
        except Exception:  # the edge of a request, as a server's is; else all lines of its slice would fail, ever again
            return self.refusal(report_bug(_log, f"in line {line.name}"), url, line.name)

    async def billed(self) -> None:
        """Wait until the ledger has what was answered by now: a line that has its result is never billed later."""
        if self._billed is not None:
            await self._billed()

    def refusal(self, error: StratosError, url: str, name: str) -> LineAnswer:
        """An error as a client of the route would get it; ``name`` is that of the line."""
        form = self._forms.get(url, OPENAI_ERRORS)
        return LineAnswer(public_error(error).http_status, form.body(error, name))

    async def _answer(
        self, endpoint: Endpoint[Any], tenant: Tenant, url: str, body: dict[str, Any], line: BatchLine
    ) -> LineAnswer:
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": url,
            "query_string": b"",
            "headers": [(b"x-request-id", line.name.encode())],
            LINE: line,
        }
        capture = _Capture()
        exchange = self._exchanges.open(scope, capture.send)
        exchange.name_route("POST", url)
        exchange.note_tenant(tenant.name, tenant.key_id, tenant.plan.name, tenant.priority_class)
        with exchange.span:
            await endpoint.resume(Request(scope, _never), _never, exchange.send, tenant, b"", body)
        return LineAnswer(capture.status, orjson.loads(b"".join(capture.parts)), capture.ignored)


class _Capture:
    """Keeps an answer."""

    def __init__(self) -> None:
        self.status = 0
        self.ignored = ""
        self.parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.ignored = ignored_names(message["headers"])
        else:
            self.parts.append(message.get("body", b""))


async def _never() -> Message:
    """Wait for a client that leaves: there is none."""
    await asyncio.Event().wait()
    raise AssertionError
