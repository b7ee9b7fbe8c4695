"""Paths without parameters are found at once; everything else is as Starlette's router finds it."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from stratos.common.clock import FakeClock
from stratos_gateway.app import GatewayApp
from stratos_gateway.http.exchange import RequestFacts
from stratos_gateway.observe.request_book import EndedRequest


class CountingRoute(Route):
    """A route that knows how often it was asked whether a request is its own."""

    num_asked = 0

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        self.num_asked += 1
        return super().matches(scope)


def route(path: str, *methods: str) -> CountingRoute:
    async def answer(_: Request) -> Response:
        return PlainTextResponse(f"{path} {methods}")

    return CountingRoute(path, answer, methods=list(methods))


class Asked:
    """An application of some routes, and what it noted of its requests."""

    def __init__(self, *routes: CountingRoute) -> None:
        self.routes = routes
        self.ended: list[tuple[str, int]] = []
        self.app = GatewayApp(routes, SimpleNamespace(clock=FakeClock(), end=self._end), Random(1))  # type: ignore[arg-type]
        for one in routes:
            one.num_asked = 0

    def _end(self, request: EndedRequest, _: RequestFacts) -> None:
        self.ended.append((request.route, request.status))

    async def ask(self, method: str, path: str) -> str:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request"}

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await self.app(scope, receive, send)
        return str(b"".join(message.get("body", b"") for message in sent).decode())

    @property
    def num_asked(self) -> int:
        return sum(one.num_asked for one in self.routes)


async def test_a_path_without_parameters_is_found_without_asking_the_routes() -> None:
    asked = Asked(route("/a", "GET"), route("/b", "POST"), route("/b", "GET"))
    assert await asked.ask("POST", "/b") == "/b ('POST',)"
    assert await asked.ask("GET", "/b") == "/b ('GET',)"
    assert (asked.num_asked, asked.ended) == (0, [("/b", 200), ("/b", 200)])


async def test_a_route_with_parameters_that_comes_first_keeps_its_paths() -> None:
    asked = Asked(route("/a/{name}", "GET"), route("/a/b", "GET", "POST"))
    assert await asked.ask("GET", "/a/b") == "/a/{name} ('GET',)"
    assert await asked.ask("POST", "/a/b") == "/a/b ('GET', 'POST')"
    assert asked.ended == [("/a/{name}", 200), ("/a/b", 200)]


async def test_other_methods_and_other_paths_are_refused_as_before() -> None:
    asked = Asked(route("/a", "POST"))
    assert "method_not_allowed" in await asked.ask("GET", "/a")
    assert "unknown_route" in await asked.ask("POST", "/a/")
    assert asked.ended == [("/a", 405), ("none", 404)]
