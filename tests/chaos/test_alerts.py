"""Faults under load, and the alerts that a Prometheus beside the platform raises: those expected, and no other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.support.servers.prometheus import fetch, need
from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

FLAGS = ("--engine", "fake", "--observe", "--decode", "2", "--max-decode", "2", "--routers", "2", "--gateways", "2")
ENV = {
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.01",
    "STRATOS_GATEWAY_SNAPSHOT__REVOCATION_BOUND_S": "10",  # 600 by default
}
EXPECTED = {
    "decode-0": {"StratosProcessDown"},
    "router-0": {"StratosProcessDown", "StratosRouterAway"},
    "redis": {"StratosSnapshotStale"},
}
"""Alerts by the process that stands still. Those that need longer than the fault lasts are not among them."""
RAISED_WITHIN_S = 150.0
RESOLVED_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    need("prometheus", "alerts raised by faults")
    with (
        running_platform(tmp_path_factory.mktemp("platform"), *FLAGS, env=ENV, is_executed=True) as running,
        load(running),
    ):
        yield running


@contextmanager
def load(platform: PlatformProcess) -> Iterator[None]:
    """A few requests a second, answered or not."""
    is_over = threading.Event()

    def ask() -> None:
        headers = {"Authorization": f"Bearer {platform.api_key}"}
        body = {"model": "base", "prompt": "the quick brown fox", "max_tokens": 20, "ignore_eos": True}
        with httpx.Client(base_url=platform.base_url, headers=headers, timeout=60) as http:
            while not is_over.wait(0.3):
                http.post("/completions", json=body)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def firing(platform: PlatformProcess) -> set[str]:
    """Alerts that are raised now."""
    alerts = fetch(f"{platform.facts()['prometheus_url']}/api/v1/alerts")["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_raises_its_alerts_and_no_other(platform: PlatformProcess, name: str) -> None:
    wait_until(lambda: not firing(platform), what="a platform without an alert", timeout_s=RESOLVED_WITHIN_S)
    process = psutil.Process(platform.processes()[name]["pid"])
    stopped = [process, *process.children(recursive=True)]
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    seen: set[str] = set()

    def is_raised() -> bool:
        seen.update(firing(platform))
        return seen >= EXPECTED[name]

    try:
        wait_until(is_raised, what=f"the alerts of {name}", timeout_s=RAISED_WITHIN_S)
    finally:
        for one in stopped:
            one.send_signal(signal.SIGCONT)
    assert seen == EXPECTED[name]
    wait_until(lambda: not firing(platform), what="the end of the alerts", timeout_s=RESOLVED_WITHIN_S)
