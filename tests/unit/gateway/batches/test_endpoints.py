"""Routes that lines of a batch may name: every POST route is one of them, or the documentation says why it is none."""

from __future__ import annotations

import re

from starlette.routing import Route

from stratos_gateway.files.lines import BATCH_ROUTES
from tests.support.paths import ROOT
from tests.support.worlds.gateway_routes import full_routes

DOCUMENT = (ROOT / "docs/batches.md").read_text(encoding="utf-8")


def test_each_route_is_an_endpoint_or_has_a_reason() -> None:
    posts = {route.path for route in full_routes(1000) if isinstance(route, Route) and "POST" in (route.methods or ())}
    assert set(BATCH_ROUTES) <= posts
    others = {path for path in posts - set(BATCH_ROUTES) if not path.endswith("/cancel")}
    table = DOCUMENT.partition("| why it is no endpoint |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(/[^`]+)`", table)) == {*others, "/cancel"}


def test_all_endpoints_are_documented() -> None:
    listed = DOCUMENT.partition("Endpoints are ")[2].partition(";")[0]
    assert set(re.findall(r"`(/[^`]+)`", listed)) == set(BATCH_ROUTES)
