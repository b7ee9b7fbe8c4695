"""The values in the documents: the chart takes them, and what it renders keeps the rules."""

from __future__ import annotations

import re

import pytest
import yaml

from scripts.chart.rendering import NO_RENDERER, has_renderer
from tests.support.document_blocks import section
from tests.support.kube.chart_policies import breaches
from tests.support.kube.chart_rendering import rendered
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
TEXT = section(DOCS / "operations.md", "Kubernetes") + section(DOCS / "models.md", "As objects of the cluster")
BLOCKS = dict(re.findall(r"<!-- values: ([^\n]+) -->\n```yaml\n(.*?)```", TEXT, flags=re.DOTALL))


def test_every_block_of_values_has_a_name() -> None:
    assert len(BLOCKS) == TEXT.count("```yaml") >= 2


@pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_the_chart_takes_them(name: str) -> None:
    assert breaches(rendered(yaml.safe_load(BLOCKS[name]))) == []
