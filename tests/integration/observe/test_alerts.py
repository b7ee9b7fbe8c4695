"""Every alert fires and resolves in Prometheus' own unit tests of rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stratos.observe.alerts.table import ALERTS
from stratos.observe.rule_files import rules_text
from tests.support.observed.alert_proofs import PROOFS, unit_tests
from tests.support.servers.prometheus import promtool


def test_every_alert_has_a_proof() -> None:
    assert PROOFS.keys() == {alert.name for alert in ALERTS}


@pytest.mark.monitoring
def test_every_alert_fires_and_resolves(tmp_path: Path) -> None:
    rules, proofs = tmp_path / "rules.yaml", tmp_path / "proofs.yaml"
    rules.write_text(rules_text())
    proofs.write_text(yaml.safe_dump(unit_tests("rules.yaml"), width=1000))
    promtool("check", "rules", rules, what="whether rules can be read, and whether every alert fires and resolves")
    promtool("test", "rules", proofs, what="whether every alert fires and resolves")
