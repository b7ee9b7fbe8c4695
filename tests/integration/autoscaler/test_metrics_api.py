"""The external-metrics API over real TLS: who may ask, what is answered, and what is not known."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from stratos.common.clock import FakeClock
from stratos.core.fleet import Fleet, QueueDepth
from stratos.core.placement import WorkerRole
from stratos.planning.external_metrics import METRIC_NAMES
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.settings import PoolKey
from stratos_autoscaler.board import BoardConfig, LoadBoard
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.metrics_api.server import MetricsApi
from stratos_autoscaler.metrics_api.settings import MetricsApiConfig
from tests.support.fakes.kubernetes import NAMESPACE, FakeKubernetes, fake_kubernetes
from tests.support.servers.front_proxy import ProxyAuthority, client_context
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.fleet_samples import MODEL

ROOT = "/apis/external.metrics.k8s.io/v1beta1"
HPA = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
POOLS = [PoolKey(role=role, model_digest=MODEL, model_name="base") for role in WorkerRole]
DEPTH = f"{ROOT}/namespaces/{NAMESPACE}/stratos_queue_depth"


def fleet(num_waiting: int, num_missing: int = 0) -> FleetSum:
    queue = QueueDepth(
        model_digest=MODEL, priority_class=0, num_requests=num_waiting, num_tokens=num_waiting, oldest_s=0.0
    )
    return FleetSum(fleet=Fleet(queues=(queue,)), num_missing=num_missing)


@dataclass
class World:
    cluster: FakeKubernetes
    clock: FakeClock
    board: LoadBoard
    own: ProxyAuthority
    proxy: ProxyAuthority
    api: MetricsApi
    asked: Counter

    async def get(self, path: str, *, user: str = HPA, name: str | None = "front-proxy", **headers: str) -> Any:
        pair = None if name is None else self.proxy.issue(name)
        return await self.get_with(pair, path, {"X-Remote-User": user, **headers})

    async def is_open(self, pair: tuple[Path, Path]) -> bool:
        """A certificate of a CA that is not trusted ends the handshake."""
        try:
            return bool((await self.get_with(pair, ROOT, {"X-Remote-User": HPA})).status_code == 200)
        except httpx.HTTPError:
            return False

    async def get_with(self, pair: tuple[Path, Path] | None, path: str, headers: dict[str, str]) -> Any:
        base = f"https://localhost:{self.api.address.rpartition(':')[2]}"
        async with httpx.AsyncClient(
            verify=client_context(self.own, pair), base_url=base, trust_env=False, timeout=LIMIT_S
        ) as client:
            return await client.get(path, headers=headers)


@asynccontextmanager
async def world(tmp_path: Path, **config: Any) -> AsyncIterator[World]:
    own, proxy, clock = ProxyAuthority(tmp_path / "own"), ProxyAuthority(tmp_path / "proxy"), FakeClock()
    pair = own.issue("autoscaler")
    board = LoadBoard(BoardConfig(), clock)
    async with fake_kubernetes() as cluster:
        cluster.allowed = {HPA}
        cluster.config_maps["extension-apiserver-authentication"] = authentication(proxy)
        api = ApiServer(cluster.url, tmp_path)
        settings = MetricsApiConfig(
            listen="127.0.0.1:0", certificate_path=pair[0], key_path=pair[1], ca_path=own.ca_path,
            **{"refresh_s": 0.02, **config},
        )  # fmt: skip
        asked = AutoscalerMetrics(CollectorRegistry()).asked
        metrics = MetricsApi(settings, api, NAMESPACE, board, asked, clock)
        task = asyncio.create_task(metrics.run())
        found = World(cluster, clock, board, own, proxy, metrics, asked)
        try:
            await eventually(lambda: found.is_open(proxy.issue("front-proxy")))
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


def authentication(proxy: ProxyAuthority, names: tuple[str, ...] = ("front-proxy",)) -> dict[str, Any]:
    data = {
        "requestheader-client-ca-file": proxy.ca,
        "requestheader-allowed-names": json.dumps(names),
        "requestheader-username-headers": json.dumps(["X-Remote-User"]),
        "requestheader-group-headers": json.dumps(["X-Remote-Group"]),
        "requestheader-extra-headers-prefix": json.dumps(["X-Remote-Extra-"]),
    }
    return {"metadata": {"name": "extension-apiserver-authentication", "resourceVersion": "0"}, "data": data}


async def test_a_number_for_an_hpa_by_labels(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        found.board.show_fleet(fleet(12_000), POOLS)
        answer = await found.get(f"{DEPTH}?labelSelector=model%3Dbase%2Crole%3Ddecode")
        assert answer.status_code == 200
        content = answer.json()
        assert (content["kind"], content["apiVersion"]) == (
            "ExternalMetricValueList",
            "external.metrics.k8s.io/v1beta1",
        )
        (item,) = content["items"]
        assert item["metricLabels"] == {"model": "base", "role": "decode"}
        assert (item["metricName"], item["value"]) == ("stratos_queue_depth", "12k")
        both = (await found.get(f"{DEPTH}?labelSelector=role%20in%20(decode,prefill)")).json()["items"]
        assert sorted(item["value"] for item in both) == ["0", "12k"]
        review = found.cluster.reviews[-1]["spec"]
        assert review["user"] == HPA
        assert review["resourceAttributes"] == {
            "namespace": NAMESPACE,
            "verb": "list",
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "resource": "stratos_queue_depth",
        }


async def test_discovery_names_every_metric(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        resources = (await found.get(ROOT)).json()
        assert resources["groupVersion"] == "external.metrics.k8s.io/v1beta1"
        assert [resource["name"] for resource in resources["resources"]] == list(METRIC_NAMES)
        groups = (await found.get("/apis")).json()["groups"]
        assert [group["preferredVersion"]["version"] for group in groups] == ["v1beta1"]
        assert (await found.get("/openapi/v2")).status_code == 404


async def test_the_aggregator_that_has_no_group_may_discover_and_read_no_number(tmp_path: Path) -> None:
    """Else it calls the API stale, and the cluster deletes no namespace any more; also without an API server to ask."""
    async with world(tmp_path) as found:
        found.board.show_fleet(fleet(3), POOLS)
        found.cluster.is_down = True
        assert (await found.get(ROOT, user="system:kube-aggregator")).status_code == 200
        assert (await found.get(ROOT, user="system:kube-aggregator", name=None)).status_code == 401
        found.cluster.is_down = False
        assert (await found.get(DEPTH, user="system:kube-aggregator")).status_code == 403


async def test_only_the_api_server_is_believed_and_only_its_users_with_the_right(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        found.board.show_fleet(fleet(3), POOLS)
        assert (await found.get(DEPTH, name=None)).status_code == 401, "headers alone prove nothing"
        assert (await found.get(DEPTH, name="somebody-else")).status_code == 401, "a name that is not allowed"
        own_pair = found.own.issue("front-proxy")
        with pytest.raises(httpx.HTTPError):  # a certificate of another CA ends the handshake
            await found.get_with(own_pair, DEPTH, {"X-Remote-User": HPA})
        assert (await found.get(DEPTH, user="")).status_code == 401
        refused = await found.get(DEPTH, user="eve")
        assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
        groups = {"X-Remote-Group": "system:masters", "X-Remote-Extra-Acme%2Fscope": "all"}
        await found.get(DEPTH, user="eve", **groups)
        spec = found.cluster.reviews[-1]["spec"]
        assert (spec["groups"], spec["extra"]) == (["system:masters"], {"acme/scope": ["all"]})


async def test_answers_about_rights_are_remembered_for_a_while_and_an_outage_is_no_permission(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        found.board.show_fleet(fleet(3), POOLS)
        await found.get(DEPTH)
        count = len(found.cluster.reviews)
        await found.get(DEPTH)
        assert len(found.cluster.reviews) == count
        found.clock.advance(11)
        found.board.show_fleet(fleet(3), POOLS)
        found.cluster.is_down = True
        assert (await found.get(DEPTH)).status_code == 503


async def test_what_is_not_known_is_an_error_and_never_zero(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        assert (await found.get(DEPTH)).status_code == 503, "no router was asked yet"
        found.board.show_fleet(fleet(0), POOLS)
        assert (await found.get(DEPTH)).status_code == 200
        found.clock.advance(10.1)
        stale = await found.get(DEPTH)
        assert (stale.status_code, stale.json()["reason"]) == (503, "ServiceUnavailable")
        found.board.show_fleet(fleet(2), POOLS)
        found.board.show_fleet(fleet(1, num_missing=1), POOLS)
        assert (await found.get(DEPTH)).status_code == 503, "the queue of one router is missing"
        found.clock.advance(60)
        found.board.show_fleet(fleet(1, num_missing=1), POOLS)
        assert (await found.get(DEPTH)).status_code == 503, "a smaller sum would shrink the pool, however long it lasts"
        found.board.show_fleet(fleet(1), POOLS)
        kv = await found.get(f"{ROOT}/namespaces/{NAMESPACE}/stratos_kv_utilisation")
        assert kv.status_code == 404, "no worker lives"
        assert (await found.get(f"{ROOT}/namespaces/other/stratos_queue_depth")).status_code == 404
        assert (await found.get(f"{DEPTH}?labelSelector=a%20b%20c")).status_code == 400


async def test_new_certificates_and_a_new_front_proxy_are_taken_without_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        found.board.show_fleet(fleet(3), POOLS)
        newer = ProxyAuthority(tmp_path / "newer")
        found.cluster.config_maps["extension-apiserver-authentication"] = authentication(newer)
        pair = newer.issue("front-proxy")

        await eventually(lambda: found.is_open(pair))
        found.own.issue("autoscaler", "renamed.example")
        with pytest.raises(httpx.ConnectError, match="localhost"):  # the new certificate has another name
            await found.get_with(pair, DEPTH, {"X-Remote-User": HPA})


async def test_the_ca_bundle_of_the_releases_own_api_service_is_kept(tmp_path: Path) -> None:
    name = "v1beta1.external.metrics.k8s.io"
    async with world(tmp_path, api_service=name, service_name="demo-autoscaler") as found:
        service = {"namespace": NAMESPACE, "name": "another"}
        entry = {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"service": service}}
        found.cluster.api_services[name] = entry
        await asyncio.sleep(0)
        assert "caBundle" not in entry["spec"]
        service["name"] = "demo-autoscaler"
        await eventually(lambda: "caBundle" in found.cluster.api_services[name]["spec"])
        assert base64.b64decode(found.cluster.api_services[name]["spec"]["caBundle"]) == found.own.ca_path.read_bytes()
