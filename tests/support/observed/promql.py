"""Names and labels of PromQL, checked against what the services declare: no Prometheus needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

from stratos.observe.recording import RECORDINGS
from tests.support.observed.metric_declarations import declared_metrics

TARGET = frozenset({"job", "instance", "component", "release"})
"""Labels that every scrape of ours has: the chart's discovery and ``up --observe`` put them on."""
OTHERS = {
    "up": frozenset[str](),
    "process_cpu_seconds_total": frozenset[str](),
    "process_resident_memory_bytes": frozenset[str](),
}
"""Series of Prometheus itself and of its client library."""
OF_A_CLUSTER = {
    "kube_job_failed": frozenset({"namespace", "job_name", "condition"}),
    "kube_job_owner": frozenset({"namespace", "job_name", "owner_kind"}),
    "kube_cronjob_status_last_schedule_time": frozenset({"namespace", "cronjob"}),
    "kube_cronjob_status_last_successful_time": frozenset({"namespace", "cronjob"}),
    "kube_horizontalpodautoscaler_status_desired_replicas": frozenset({"namespace", "horizontalpodautoscaler"}),
    "kube_horizontalpodautoscaler_spec_max_replicas": frozenset({"namespace", "horizontalpodautoscaler"}),
    "kube_horizontalpodautoscaler_spec_min_replicas": frozenset({"namespace", "horizontalpodautoscaler"}),
    "kubelet_volume_stats_available_bytes": frozenset({"namespace", "persistentvolumeclaim"}),
    "kubelet_volume_stats_capacity_bytes": frozenset({"namespace", "persistentvolumeclaim"}),
}
"""Series of kube-state-metrics and of kubelets."""


class QueryError(AssertionError):
    """A query names what there is not."""


def known_series() -> dict[str, frozenset[str]]:
    """Labels of every series on the wire by name, those of recording rules included."""
    known = {name: labels | TARGET for name, labels in OTHERS.items()} | OF_A_CLUSTER
    for metric in declared_metrics():
        labels = frozenset(metric.labels) | TARGET
        if metric.type == "histogram":
            known |= {f"{metric.name}_bucket": labels | {"le"}}
            known |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
        else:
            known[metric.name] = labels
    for rule in RECORDINGS:
        known[rule.name] = labels_of(rule.expr, known)
    return known


def selectors(expr: str) -> list[promql.VectorSelector]:
    """Every selector of a query."""
    return list(_selectors(promql.parse(expr)))


def labels_of(expr: str, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Labels of a query's result.

    Raises:
        QueryError: it names a series or a label that there is not.
    """
    return _Labels(known).of(promql.parse(expr)) or frozenset()


def _children(node: Any) -> Iterator[Any]:
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (child := getattr(node, name, None)) is not None:
            yield child
    yield from getattr(node, "args", ())


def _selectors(node: Any) -> Iterator[promql.VectorSelector]:
    if isinstance(node, promql.VectorSelector):
        yield node
    for child in _children(node):
        yield from _selectors(child)


@dataclass(frozen=True)
class _Labels:
    """Labels of a node's result; ``None`` for a scalar or a text."""

    known: Mapping[str, frozenset[str]]

    def of(self, node: Any) -> frozenset[str] | None:
        match node:
            case promql.VectorSelector():
                return self._selector(node)
            case promql.BinaryExpr():
                return self._binary(node)
            case promql.AggregateExpr():
                return self._aggregate(node)
            case promql.Call():
                return self._call(node)
            case promql.MatrixSelector():
                return self.of(node.vector_selector)
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                return self.of(node.expr)
        return None

    def _selector(self, node: Any) -> frozenset[str]:
        matchers = list(node.matchers.matchers)
        names = [node.name] if node.name else self._names(matchers)
        if not names or any(name not in self.known for name in names):
            raise QueryError(f"there is no series {node.prettify()}")
        labels = frozenset.intersection(*(self.known[name] for name in names))
        for matcher in matchers:
            if matcher.name not in labels | {"__name__"}:
                raise QueryError(f"{node.prettify()}: there is no label {matcher.name}")
        return labels

    def _names(self, matchers: list[Any]) -> list[str]:
        patterns = [re.compile(matcher.value) for matcher in matchers if matcher.name == "__name__"]
        return [name for name in self.known for pattern in patterns if pattern.fullmatch(name)]

    def _aggregate(self, node: Any) -> frozenset[str]:
        labels = self.of(node.expr) or frozenset()
        if node.modifier is None:
            return frozenset()
        given = frozenset(node.modifier.labels)
        if not given <= labels:
            raise QueryError(f"{node.prettify()}: there is no label {', '.join(sorted(given - labels))}")
        return given if node.modifier.type == promql.AggModifierType.By else labels - given

    def _call(self, node: Any) -> frozenset[str] | None:
        found = [labels for labels in map(self.of, node.args) if labels is not None]
        labels = found[0] if found else None
        if node.func.name == "histogram_quantile" and labels is not None:
            if "le" not in labels:
                raise QueryError(f"{node.prettify()}: a quantile needs le")
            return labels - {"le"}
        if node.func.name == "label_replace" and labels is not None:
            return labels | {node.args[1].val}
        return labels

    def _binary(self, node: Any) -> frozenset[str] | None:
        left, right = self.of(node.lhs), self.of(node.rhs)
        if left is None or right is None:
            return right if left is None else left
        modifier = node.modifier
        matching = None if modifier is None else modifier.matching
        if matching is not None and not frozenset(matching.labels) <= left | right:
            raise QueryError(f"{node.prettify()}: it matches by a label that neither side has")
        if modifier is not None and modifier.card == promql.VectorMatchCardinality.OneToMany:
            return right | frozenset(modifier.group_labels)
        if modifier is not None and modifier.card == promql.VectorMatchCardinality.ManyToOne:
            return left | frozenset(modifier.group_labels)
        return left
