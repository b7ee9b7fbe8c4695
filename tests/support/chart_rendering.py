"""Renderings of the chart that are valid and within its rules."""

from __future__ import annotations

from typing import Any

from scripts.chart_rendering import render
from tests.support.chart_objects import Object
from tests.support.chart_policies import breaches
from tests.support.kubernetes_schema import VERSIONS, problems


def checked(values: dict[str, Any], **options: str) -> list[Object]:
    """The objects, of which none is invalid."""
    objects = render(values, **options)
    assert breaches(objects) == []
    assert [problem for found in objects for version in VERSIONS for problem in problems(version, found)] == []
    return objects
