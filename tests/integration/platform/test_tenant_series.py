"""Every process shows the same tenants in its metrics, the largest, where there are more tenants than series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

pytestmark = pytest.mark.slow
NUM_TENANTS, NUM_SERIES, NUM_LARGE = 5, 3, 200
SIZE = ("--engine", "fake", "--gateways", "2", "--routers", "2", "--decode", "2", "--max-decode", "2")
ENV = {
    "STRATOS_GATEWAY_OBSERVE__MAX_TENANT_SERIES": str(NUM_SERIES),
    "STRATOS_GATEWAY_OBSERVE__TENANT_SERIES_INTERVAL_S": "0.2",
}
SERIES = {"gateway": "stratos_output_tokens_total", "decode": "stratos_device_seconds_total"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, *MTLS, env=ENV) as running:
        yield running


def shown(platform: PlatformProcess) -> dict[str, dict[str, float]]:
    """Of each gateway and decode worker, what it counts by tenant."""
    found = {}
    for process, facts in platform.processes().items():
        if name := next((SERIES[kind] for kind in SERIES if process.startswith(kind)), ""):
            text = httpx.get(f"http://{facts['metrics_address']}/metrics", trust_env=False, timeout=LIMIT_S).text
            samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
            tenants = ((s.labels.get("tenant"), s.value) for s in samples if s.name == name)
            found[process] = {tenant: value for tenant, value in tenants if tenant and value}
    return found


def ask(platform: PlatformProcess, key: str, num_tokens: int) -> None:
    """Connections of their own, so that both gateways get some."""
    body = {"model": "base", "prompt": key[-8:], "max_tokens": num_tokens, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{platform.base_url}/completions", headers=headers, json=body, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text


def test_all_processes_show_the_largest_tenants_and_the_same(platform: PlatformProcess) -> None:
    keys = {
        name: platform.stratos("keys", "create", "--tenant", name, "--plan", "local").stdout.split()[-1]
        for name in (f"series-{number}" for number in range(NUM_TENANTS))
    }
    largest = set(list(keys)[-NUM_SERIES:])
    for name, key in keys.items():  # the largest come last
        ask(platform, key, NUM_LARGE if name in largest else 1)

    def agreed(found: Mapping[str, Mapping[str, float]]) -> bool:
        names = [tenants.keys() - {"other", "stratos-health"} for place, tenants in found.items() if is_gateway(place)]
        return all(own <= largest for own in names)

    wait_until(lambda: agreed(shown(platform)), what="the same tenants at both gateways")
    before = shown(platform)
    for key in (*keys.values(), *keys.values()):
        ask(platform, key, 2)
    after = shown(platform)
    grown = {
        place: {tenant for tenant, value in tenants.items() if value > before[place].get(tenant, 0)}
        for place, tenants in after.items()
    }
    assert set.union(*(grown[place] for place in grown if not is_gateway(place))) <= {*largest, "other"}
    for tenant, num_tokens in {**dict.fromkeys(largest, 4), "other": 4 * (NUM_TENANTS - NUM_SERIES)}.items():
        counts = [sum(found[p].get(tenant, 0) for p in found if is_gateway(p)) for found in (before, after)]
        assert counts[1] - counts[0] == num_tokens, tenant


def is_gateway(place: str) -> bool:
    return place.startswith("gateway")
