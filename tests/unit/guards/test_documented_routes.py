"""The gateway's README has the routes of the API's port, those and no others."""

from __future__ import annotations

import re

import orjson

from tests.support.paths import ROOT

GATEWAY = ROOT / "services" / "gateway"


def written(path: str) -> str:
    return re.sub(r"\{[a-z_]+\}", "{}", path)


def test_routes_of_the_readme_are_those_of_the_api() -> None:
    """The defect: it named /metrics, which is on a port of its own, and none of files, batches and streams."""
    section = (GATEWAY / "README.md").read_text(encoding="utf-8").partition("\n## Routes\n")[2].partition("\n\n`")[0]
    told = {written(path) for path in re.findall(r"`(?:[A-Z]+ )?(/[a-z0-9_/{}.]*)`", section)}
    document = orjson.loads((GATEWAY / "stratos_gateway" / "openapi" / "openapi.json").read_bytes())
    assert told == {written(path) for path in document["paths"]}
