"""One set of images and one report for all points of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator

import pytest

from tests.support.kube.cluster.commands import Kubectl
from tests.support.kube.cluster.images import provide_images
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Points in the order of their numbers, and the short form last."""
    items.sort(key=lambda item: [int(part) for part in re.findall(r"point_(\d+)", item.nodeid)[:1]] or [99])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails is in the report as well: it has no figures that would say so."""
    ended = yield
    report = item.funcargs.get("report")
    if isinstance(report, ClusterReport) and (ended.failed or (ended.when == "call" and ended.passed)):
        why = " ".join(f"{call.excinfo.value}".split())[:300].replace("|", "/") if call.excinfo else ""
        report.end(item.name, seconds=call.duration, why=why or "failed" * ended.failed)
    return ended


@pytest.fixture(scope="session")
def cluster() -> ClusterSettings:
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("KUBECONFIG names no cluster; see docs/operations.md")
    return ClusterSettings.from_environment()


@pytest.fixture(scope="session")
def report(cluster: ClusterSettings) -> ClusterReport:
    return ClusterReport.from_environment(f"local cluster, Kubernetes {Kubectl().server_version()}", cluster.tag)


@pytest.fixture(scope="session")
def images(cluster: ClusterSettings) -> dict[str, float]:
    """They are on the nodes; seconds that it took."""
    return provide_images(cluster)


@pytest.fixture
def no_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """No object of the cluster's own has the name of the test's namespace at the end."""
    yield
    kinds = "clusterroles,clusterrolebindings,priorityclasses,apiservices,validatingwebhookconfigurations"
    names = Kubectl()("get", kinds, "-o", "name").split()
    own = re.compile(rf"{request.module.NAMESPACE}(?!\d)")  # another point may run beside this one
    assert [name for name in names if own.search(name)] == []
