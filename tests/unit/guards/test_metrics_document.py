"""docs/metrics.md says of every metric what the code says, of every view what its table says, and of nothing else."""

from __future__ import annotations

import re
from collections import Counter

from stratos.rpc.serving.metric_views import VIEWS
from tests.support.observed.metric_declarations import declared_metrics
from tests.support.paths import ROOT

DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\| (.*) \|$", re.MULTILINE)
VIEW_ROW = re.compile(r"^\| `([\w:]+)` \| `(\w+)` \| ([^|]*)\|$", re.MULTILINE)


def test_names_types_labels_and_helps_are_those_of_the_code() -> None:
    rows = {found[1]: (found[2], tuple(re.findall(r"`(\w+)`", found[3])), found[4]) for found in ROW.finditer(DOCUMENT)}
    declared = {metric.name: metric for metric in declared_metrics()}
    assert rows.keys() == declared.keys()
    for name, (kind, labels, text) in rows.items():
        metric = declared[name]
        assert (kind, labels) == (metric.type, metric.labels), name
        assert text.startswith(metric.text.rstrip(".")), f"{name}: its help is {metric.text!r}"


def test_every_instrument_is_a_row_of_a_table() -> None:
    names = Counter(metric.name for metric in declared_metrics())
    assert {name for name, count in names.items() if count > 1} == set()
    imported = re.compile(
        r"^from prometheus_client import .*\b(Counter|Gauge|Histogram|Info|Summary|Enum)\b", re.MULTILINE
    )
    made = re.compile(r"\b(Counter|Gauge|Histogram|Info|Summary|Enum)\(")
    family = re.compile(r"MetricFamily\(\s*\"")
    modules = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in modules}
    assert [n for n, s in sources.items() if (imported.search(s) and made.search(s)) or family.search(s)] == []


def test_every_metric_is_in_the_section_of_who_shows_it() -> None:
    for metric in declared_metrics():
        section = DOCUMENT.split(f"## {metric.section}\n")[1].split("\n## ")[0]
        assert f"| `{metric.name}` |" in section


def test_every_view_is_listed_with_its_source() -> None:
    kinds = {metric.name.removesuffix("_total"): metric.type for metric in declared_metrics()}
    expected = {
        view.name + ("_total" if kinds[view.source] == "counter" else ""): (
            view.source + ("_total" if kinds[view.source] == "counter" else ""),
            tuple(view.labels),
        )
        for view in VIEWS
    }
    rows = {found[1]: (found[2], tuple(re.findall(r"`(\w+)`", found[3]))) for found in VIEW_ROW.finditer(DOCUMENT)}
    assert rows == expected
