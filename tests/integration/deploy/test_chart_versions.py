"""The chart as Helm itself judges it, for the oldest and the newest Kubernetes, and what a user is told.

Needs a renderer, as ``test_chart_options`` says.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from scripts.chart.rendering import CHART, NO_RENDERER, RenderError, has_renderer, lint, notes
from tests.support.kube.chart_rendering import SERVED_HERE, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
OLDEST, NEWEST = "1.29.0", "1.37.0"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_lint_finds_nothing(version: str) -> None:
    lint(SERVED_HERE, kube_version=version)


def test_lint_sees_a_broken_chart(tmp_path: Path) -> None:
    """The control."""
    broken = shutil.copytree(CHART, tmp_path / CHART.name)
    (broken / "templates" / "router.yaml").write_text("kind: Service\nmetadata: {name: UPPER}\napiVersion: v1\n")
    with pytest.raises(RenderError, match="UPPER"):
        lint({}, chart=broken)


def test_objects_are_the_same_for_every_version() -> None:
    values = {"credentials": {"existingSecret": "drawn-once"}}
    assert rendered(values, kube_version=OLDEST) == rendered(values, kube_version=NEWEST)


def test_helm_refuses_older_versions() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={OLDEST}-0"


def test_notes_have_url_key_and_first_request() -> None:
    found = notes(
        {**SERVED_HERE, "models": [{"name": "chat", "servedName": "team/chat", "source": {"claim": {"name": "m"}}}]}
    )
    for text in (
        "URL in the cluster: http://demo-gateway.stratos",
        "get secret demo-credentials -o jsonpath='{.data.api-key}'",
        '"model": "team/chat"',
        "helm test -n stratos demo",
    ):
        assert text in found
