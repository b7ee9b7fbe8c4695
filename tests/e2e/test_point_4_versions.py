"""Point 4, what installs a release of its own: an earlier version upgraded and back, and certificates of one's own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.kube.cluster.commands import CommandFailed, run, wait_until
from tests.support.kube.cluster.disturbed import SERVICES, Disturbed, disturbed_namespace, undisturbed
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.old_version import OldVersion, old_version
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.kube.cluster.shared_volume import shared_volume

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
UPGRADED, SUPPLIED = "stratos-e2e-4-upgrade", "stratos-e2e-4-secrets"
OLD_CLAIM = "stratos-objects"
"""Every pod of the old version's workers mounts it, on whatever node."""
OWN_CERTIFICATES = {"mtls": {"source": "secrets"}}


@pytest.mark.usefixtures("images")
def test_point_4_rolling_upgrade(cluster: ClusterSettings, report: ClusterReport, tmp_path: Path) -> None:
    tools = f"{cluster.repository}lora-registry:{cluster.tag}"
    with (
        old_version(cluster, tmp_path / "old") as old,
        shared_volume(tools, UPGRADED, OLD_CLAIM),
        disturbed_namespace(cluster, UPGRADED) as found,
    ):
        _install_old(found, old)
        before = {pod for service in SERVICES for pod in found.pods_of(service)}
        with undisturbed(found, report, "an upgrade of every service") as (load, figures):
            start = time.monotonic()
            _upgrade(found)
            figures |= {"pods replaced": len(before), "upgrade, s": time.monotonic() - start}
            wait_until("the old ones are gone", lambda: not before & _all_pods(found), 180)
            load.wait_streams()
        tags = {c["image"].rpartition(":")[2] for pod in found.release.pods() for c in pod["spec"]["containers"]}
        assert old.tag not in tags
        with undisturbed(found, report, "the way back to the earlier version") as (load, figures):
            start = time.monotonic()
            _go_back(found)
            figures |= {"rollback, s": time.monotonic() - start}
            load.wait_streams()


def _install_old(found: Disturbed, old: OldVersion) -> None:
    *flags, placed = shlex.split(found.environment["HELM_ARGS"])
    values = yaml.safe_load((old.chart / "values.yaml").read_text())
    given = json.loads(Path(placed).read_text())
    known = {name: settings for name, settings in given.items() if set(settings) <= set(values[name])}
    old_placed = Path(placed).with_suffix(".old.json")
    old_placed.write_text(json.dumps(known))
    flags.append(str(old_placed))
    if "create" in values["autoscaling"]["metricsApi"]:  # such a chart serves them unless told not to
        flags.append("--set=autoscaling.metricsApi.create=false")
    found.release.helm("install", str(old.chart), *flags, f"--set=image.tag={old.tag}", "--wait", "--timeout", "15m")
    wait_until("all old pods are ready", lambda: not found.release.unready(), 300)


def _upgrade(found: Disturbed) -> None:
    """In the two steps of docs/operations.md, "From gateways of each model", which the old version has."""
    release = found.release
    with pytest.raises(CommandFailed, match="would end before those of all models serve") as refused:
        run_documented("upgrade", found.environment)
    printed = r"kubectl --namespace \S+ annotate deployment (.+) helm\.sh/resource-policy=keep"
    command = re.search(printed, f"{refused.value}")
    assert command is not None, f"it prints how to go on: {refused.value}"
    run(shlex.split(command[0]))
    older = command[1].split()
    old_pods = set(found.pods_of("gateway"))
    run_documented("upgrade", found.environment)
    wait_until("old and new are ready, and models recorded", lambda: not release.unready() + _unfinished(found), 300)
    assert old_pods < set(found.pods_of("gateway")), "both are there"
    run_documented("upgrade", found.environment)
    release.kubectl("delete", "deployment", *older, "--wait=false")
    wait_until("the upgrade is ready", lambda: not release.unready(), 300)


def _go_back(found: Disturbed) -> None:
    """As docs/operations.md has it: these gateways stay, and serve where the old Service looks."""
    release = found.release
    run_documented("keep the gateways", found.environment)
    ours = set(found.pods_of("gateway"))
    release.helm("rollback", "1", "--wait", "--timeout", "15m")
    wait_until("the old ones are ready", lambda: not release.unready(), 300)
    assert ours < set(found.pods_of("gateway")), "both are there"
    release.kubectl("delete", "deployment", f"{release.name}-gateway", "--wait=false")
    wait_until("these are gone", lambda: not ours & _all_pods(found), 180)


def _unfinished(found: Disturbed) -> list[str]:
    """Jobs of the release that have not ended well."""
    jobs = found.release.kubectl.items("jobs", found.release.selector)
    return [job["metadata"]["name"] for job in jobs if not job["status"].get("succeeded")]


def _all_pods(found: Disturbed) -> set[str]:
    return {pod["metadata"]["name"] for pod in found.release.pods()}


@pytest.mark.usefixtures("images")
def test_point_4_certificates_of_ones_own(cluster: ClusterSettings, report: ClusterReport, tmp_path: Path) -> None:
    """An installation without them is refused by name; replaced ones are taken under load."""
    with disturbed_namespace(cluster, SUPPLIED, OWN_CERTIFICATES) as found:
        with pytest.raises(CommandFailed, match=r"mtls\.secretPrefix: there is no Secret stratos-tls-gateway"):
            run_documented("install", found.environment)
        _certificates(found, tmp_path, "issue")
        run_documented("install", found.environment)
        wait_until("all pods are ready", lambda: not found.release.unready(), 300)
        with undisturbed(found, report, "supplied certificates replaced") as (load, figures):
            before = found.expiries()
            _certificates(found, tmp_path, "renew", "--all")
            figures |= {"pods": len(before), "taken by all after, s": found.wait_certificates_after(before)}
            load.wait_streams()
        assert found.release.restarts() == {}


def _certificates(found: Disturbed, folder: Path, verb: str, *more: str) -> None:
    """The documented command makes them in a folder; each role's three files are a Secret."""
    domain = f"{found.release.name}.{found.release.kubectl.namespace}"
    command = [sys.executable, "-m", "stratos.cli", "certificates", verb, "--folder", str(folder), "--domain", domain]
    subprocess.run([*command, *more], check=True)
    for role in (*SERVICES, "admin"):
        files = [f"--from-file={folder / role / name}" for name in ("tls.crt", "tls.key", "ca.crt")]
        secret = ("create", "secret", "generic", f"stratos-tls-{role}", *files, "--dry-run=client", "-o", "json")
        found.release.kubectl("apply", "-f", "-", stdin=found.release.kubectl(*secret))
