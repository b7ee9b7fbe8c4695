"""The served document: that of the parsers and the routing table, valid OpenAPI 3.1, and true of its own examples."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator, ValidationError
from starlette.routing import Route

from scripts.openapi.bodies import parsers
from scripts.openapi.examples import EXAMPLES
from scripts.openapi.generate import DOCUMENT, document_text
from stratos.common.errors import BadRequest
from tests.support.paths import ROOT
from tests.support.worlds.gateway_routes import full_app, full_routes

META_SCHEMA = ROOT / "tests" / "data" / "openapi-3.1-schema.json"
"""Of the OpenAPI Initiative, under Apache-2.0."""
UNKNOWN = "no_such_field"


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    return found


def validator(path: str) -> Draft202012Validator:
    api = document()
    ref = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return Draft202012Validator({**api, "$ref": ref})


def test_the_stored_document_is_what_the_parsers_read() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document_text(), "run python -m scripts.openapi.generate"


def test_the_document_has_every_route_and_no_other() -> None:
    routes = [route for route in full_routes(1 << 20) if isinstance(route, Route) and route.name != "sockets"]
    served = {(method.lower(), re.sub(r":\w+\}", "}", r.path)) for r in routes for method in r.methods or ()}
    told = {(method, path) for path, methods in document()["paths"].items() for method in methods}
    assert {(method, path) for method, path in served if method != "head"} == told


FORMS = {"/v1/files"}
"""Paths whose bodies are no JSON."""


def test_every_parser_has_examples_and_every_example_a_parser() -> None:
    assert set(parsers()) == set(EXAMPLES)
    bodies = {path for path, methods in document()["paths"].items() for m in methods.values() if "requestBody" in m}
    assert bodies - FORMS == set(EXAMPLES)


def test_the_document_is_openapi_3_1() -> None:
    Draft202012Validator(json.loads(META_SCHEMA.read_text(encoding="utf-8"))).validate(document())
    with pytest.raises(ValidationError):
        Draft202012Validator(json.loads(META_SCHEMA.read_text(encoding="utf-8"))).validate({"openapi": "3.1.0"})
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere() -> None:
    text, api = DOCUMENT.read_text(encoding="utf-8"), document()
    refs = set(re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', text))
    assert refs
    assert [ref for ref in refs if ref[1] not in api["components"][ref[0]]] == []


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_taken_by_the_parser_and_by_the_schema(path: str) -> None:
    for body in EXAMPLES[path]:
        parsers()[path](body)
        validator(path).validate(body)


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_unknown_field_is_refused_by_both(path: str) -> None:
    body = {**EXAMPLES[path][0], UNKNOWN: 1}
    with pytest.raises(BadRequest, match=UNKNOWN):
        parsers()[path](body)
    assert not validator(path).is_valid(body)


@pytest.mark.parametrize("path", EXAMPLES)
def test_bounds_of_the_schema_are_those_of_the_parser(path: str) -> None:
    """One beyond either bound is refused by both."""
    properties = document()["components"]["schemas"][re.sub(r"\W+", "_", path).strip("_")]["properties"]
    bounded = {name: schema for name, schema in properties.items() if "maximum" in schema}
    for name, schema in bounded.items():
        lowest = schema.get("exclusiveMinimum", schema.get("minimum", 0) - 1)
        for beyond in (schema["maximum"] + 1, lowest):
            body = {**EXAMPLES[path][0], name: beyond}
            assert not validator(path).is_valid(body), (name, beyond)
            with pytest.raises(BadRequest):
                parsers()[path](body)


async def test_document_and_page_are_served_without_a_key_and_load_nothing_from_elsewhere() -> None:
    transport = httpx.ASGITransport(full_app(2 << 20))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        found, page = await client.get("/openapi.json"), await client.get("/docs")
        root = await client.head("/")
    assert (root.status_code, root.headers["location"]) == (307, "/docs")
    assert (found.status_code, found.json()) == (200, document())
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert re.findall(r"https?://", page.text) == []
