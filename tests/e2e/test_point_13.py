"""Point 13: `stratos chaos --kube` breaks a release on three nodes as its operator would, and finds every promise kept.

Redis, routers, gateways and workers get a SIGKILL, a worker leaves by eviction, one is cut off and a node is drained.
No stream of 24 under each of these is different from an undisturbed one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.cluster import nodes
from tests.support.kube.cluster.commands import Kubectl, wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.release import Release, namespace, wait_gone
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.paths import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
NAMESPACE = "stratos-e2e-13"
VALUES = "tests/e2e/point_4.values.yaml"
ADMIN = "gateway.admin.enabled=true"
READY_S, LASTING_S = 300.0, 10
"""These values call a worker silent after six seconds."""
FAULTS = (
    "kill decode-0", "kill prefill-0", "kill router-0", "kill gateway-0", "kill redis", "stop decode-1",
    "partition decode-1", "drain decode-2",
)  # fmt: skip
KINDS = {"kill", "stop", "partition", "drain", "drain-node"}
REPORT = os.environ.get("E2E_CHAOS_REPORT", "build/e2e/chaos.json")


@pytest.mark.usefixtures("images", "no_leftovers")
def test_point_13_chaos_of_a_release(cluster: ClusterSettings, report: ClusterReport) -> None:
    environment = cluster.documented_environment(NAMESPACE)
    environment["HELM_ARGS"] = f"-f {VALUES} --set {ADMIN} {environment['HELM_ARGS']}"
    with namespace(NAMESPACE) as kubectl:
        release = Release("stratos", kubectl)
        run_documented("install", environment)
        wait_until("all pods are ready", lambda: not release.unready(), READY_S)
        refused = chaos("kill decode-0")
        assert (refused.returncode, "--yes-break-things" in refused.stderr) == (1, True), refused.stderr
        plan = nodes.NodePlan.of_cluster()
        faults = (*FAULTS, f"drain-node {plan.drained}")
        done = chaos("--yes-break-things", f"--lasting={LASTING_S}", "--report", REPORT, *faults)
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        figures = held(json.loads((ROOT / REPORT).read_text())["scenarios"])
        left = [name for name in Kubectl()("get", "namespaces", "-o", "name").split() if "stratos-chaos-" in name]
        for name in left:
            Kubectl()("wait", "--for=delete", name, "--timeout=60s")
        assert not json.loads(Kubectl()("get", "node", plan.drained, "-o", "json"))["spec"].get("unschedulable")
        run_documented("uninstall", environment)
        run_documented("remove data", environment)
        wait_gone(release)
    report.add("point 13: chaos of a release", has_passed=True, **figures)


def chaos(*argv: str) -> subprocess.CompletedProcess[str]:
    """The command, as an operator gives it."""
    command = [sys.executable, "-m", "stratos.cli", "chaos", "--kube", "--namespace", NAMESPACE, *argv]
    Path(ROOT / REPORT).parent.mkdir(parents=True, exist_ok=True)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)


def held(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a report in which every scenario and every control passed, and no stream was different."""
    controls = {row["scenario"].removeprefix("control: ") for row in rows if row["scenario"].startswith("control")}
    assert controls == {"no fault", *(f"{kind} nothing" for kind in KINDS)}
    tried = [row for row in rows if not row["scenario"].startswith("control")]
    assert len(tried) == len(FAULTS) + 1
    assert [row["scenario"] for row in rows if not row["passed"] or row["different"] or row["failed"]] == []
    assert all(row["had_effect"] for row in tried)
    gaps = {f"longest pause under {row['scenario']}, s": row["longest_gap_s"] for row in tried}
    counts = {"streams": sum(row["streams"] for row in tried), "moved": sum(row["moved"] for row in tried)}
    return {"scenarios": len(tried), **counts, "different": 0, **gaps}
