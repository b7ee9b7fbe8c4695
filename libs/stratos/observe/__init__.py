"""Views for people and for Prometheus: dashboards, recording rules, alerts with their runbooks, and a local Prometheus.

Each is one table, from which everything else is made: Grafana's JSON, rule files, runbooks and the pictures in docs.
Queries name only series that a test found in a running platform.  ``@`` in the query of a panel stands for the releases
that were chosen; ``release`` is the label that the chart's discovery and ``stratos up --observe`` put on every series.

Read in this order: ``panels``, ``dashboards``, ``recording``, ``alerts``, ``rule_files``, ``grafana``, ``runbooks``,
``local_prometheus``.
"""
