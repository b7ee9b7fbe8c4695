"""Renderings of the chart that are valid and within its rules."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from scripts.chart.rendering import render
from tests.support.kube.chart_objects import Object
from tests.support.kube.chart_policies import breaches
from tests.support.kube.kubernetes_schema import VERSIONS, problems


def checked(values: dict[str, Any], release: str = "demo") -> list[Object]:
    """The objects, of which none is invalid; equal values are rendered once."""
    return copy.deepcopy(_checked(json.dumps(values), release))


@functools.cache
def _checked(values: str, release: str) -> list[Object]:
    objects = render(json.loads(values), release=release)
    assert breaches(objects) == []
    assert [problem for found in objects for version in VERSIONS for problem in problems(version, found)] == []
    return objects
