"""Renderings of the chart that are valid and within its rules."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.chart.rendering import CHART, render
from tests.support.kube.chart_objects import Object
from tests.support.kube.chart_policies import breaches
from tests.support.kube.kubernetes_schema import VERSIONS, problems

SERVED_HERE: dict[str, Any] = {"autoscaling": {"metricsApi": {"owner": "release"}}}
"""What a rendering without a cluster has to be told; values that name another owner win."""


def checked(values: dict[str, Any], release: str = "demo") -> list[Object]:
    """The objects, of which none is invalid; equal values are rendered once."""
    return copy.deepcopy(_checked(json.dumps(values), release))


def rendered(values: Mapping[str, Any], **options: Any) -> list[Object]:
    """The same without the checks; ``options`` are those of ``render``."""
    return render(_merged(SERVED_HERE, values), **options)


def said_by(include: str, values: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """What a named template makes of the release and of facts that only a cluster knows, as they would be found."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(shutil.copytree(CHART, Path(folder) / CHART.name))
        for template in (chart / "templates").rglob("*"):
            if template.is_file() and template.suffix != ".tpl":
                template.unlink()
        probe = f'''kind: ConfigMap
metadata: {{name: probe}}
said: {{{{ include "{include}" (merge (dict "root" .) (fromJson `{json.dumps(facts)}`)) | trim | toJson }}}}
'''
        (chart / "templates" / "probe.yaml").write_text(probe)
        (found,) = render(values, chart=chart)
        return str(found["said"])


@functools.cache
def _checked(values: str, release: str) -> list[Object]:
    objects = rendered(json.loads(values), release=release)
    assert breaches(objects) == []
    assert [problem for found in objects for version in VERSIONS for problem in problems(version, found)] == []
    return objects


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    found = {**base, **over}
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            found[key] = _merged(base[key], over[key])
    return found
