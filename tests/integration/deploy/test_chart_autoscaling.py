"""Who owns the size of a pool, and what the autoscaler may do for it: as rendered."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.planning.external_metrics import METRIC_NAMES
from stratos.planning.settings import PoolBounds, ScalingMode
from stratos.rpc.settings import read_environment
from stratos_autoscaler.kubernetes.noted_pools import NotedPools
from stratos_autoscaler.settings import AutoscalerSettings
from tests.support.kube.chart_objects import Object, container, kinds, one, variables
from tests.support.kube.chart_rendering import SERVED_HERE, checked, rendered, said_by

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
API = "v1beta1.external.metrics.k8s.io"


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


def settings(objects: list[Object]) -> AutoscalerSettings:
    environment = variables(container(objects, "demo-autoscaler"))
    return AutoscalerSettings(**read_environment(AutoscalerSettings, environment))


def pools(objects: list[Object]) -> tuple[PoolBounds, ...]:
    """Pools as the autoscaler finds them at their Deployments."""
    assert settings(objects).pools == ()
    assert settings(objects).kubernetes.follow_pools
    return NotedPools(()).now(kinds(objects, "Deployment").values())


def test_by_default_an_hpa_owns_each_pool_and_the_chart_renders_no_replicas(defaults: list[Object]) -> None:
    hpas = kinds(defaults, "HorizontalPodAutoscaler")
    assert set(hpas) == {"demo-prefill-base", "demo-decode-base", "demo-gateway"}
    for name, hpa in hpas.items():
        assert "replicas" not in one(defaults, "Deployment", name)["spec"]
        assert {metric["external"]["metric"]["name"] for metric in hpa["spec"]["metrics"]} <= set(METRIC_NAMES)
    decode = hpas["demo-decode-base"]["spec"]
    assert (decode["minReplicas"], decode["maxReplicas"]) == (2, 10)
    external = decode["metrics"][0]["external"]
    assert external["target"] == {"type": "AverageValue", "averageValue": "10"}
    assert external["metric"]["selector"]["matchLabels"] == {"release": "demo", "model": "base", "role": "decode"}
    assert decode["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300
    targets = {m["external"]["metric"]["name"]: m["external"]["target"]["averageValue"] for m in decode["metrics"]}
    assert targets == {"stratos_queue_depth": "10", "stratos_batch_load": "750m", "stratos_kv_load": "800m"}
    assert one(defaults, "Deployment", "demo-router")["spec"]["replicas"] == 2
    assert one(defaults, "Deployment", "demo-autoscaler")["spec"]["replicas"] == 2


def test_the_autoscaler_knows_its_pools_and_may_touch_no_other_deployment(defaults: list[Object]) -> None:
    found = settings(defaults)
    assert [(p.role.value, p.model_name, p.deployment, p.mode) for p in pools(defaults)] == [
        ("decode", "base", "demo-decode-base", ScalingMode.HPA),
        ("prefill", "base", "demo-prefill-base", ScalingMode.HPA),
    ]
    named = pools(
        checked({"models": [{"name": "base", "servedName": "org/model", "source": {"claim": {"name": "m"}}}]})
    )
    assert {pool.key.shown_name for pool in named} == {"org/model"}, "as gateways and workers call it"
    assert found.kubernetes.release == "demo"
    assert (found.kubernetes.namespace, found.kubernetes.lease_name) == ("stratos", "demo-autoscaler")
    rules = one(defaults, "Role", "demo-autoscaler")["rules"]
    scales = [rule for rule in rules if "deployments/scale" in rule["resources"]]
    assert [rule["resourceNames"] for rule in scales] == [["demo-prefill-base", "demo-decode-base"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch", "patch", "update", "create"}


def test_the_api_is_the_releases_and_its_certificate_names_the_service(defaults: list[Object]) -> None:
    service = one(defaults, "APIService", API)["spec"]["service"]
    assert service == {"name": "demo-autoscaler", "namespace": "stratos", "port": 443}
    assert "insecureSkipTLSVerify" not in one(defaults, "APIService", API)["spec"]
    found = settings(defaults).metrics_api
    assert (found.api_service, found.service_name) == (API, "demo-autoscaler")
    (port,) = [p for p in one(defaults, "Service", "demo-autoscaler")["spec"]["ports"] if p["name"] == "metrics-api"]
    (target,) = [p for p in container(defaults, "demo-autoscaler")["ports"] if p["name"] == port["targetPort"]]
    assert found.listen.endswith(f":{target['containerPort']}")
    (job,) = [o for name, o in kinds(defaults, "Job").items() if re.match("demo-certificates-[0-9a-f]{10}$", name)]
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--dns-name=autoscaler=demo-autoscaler.stratos.svc" in command
    policy = one(defaults, "NetworkPolicy", "demo-autoscaler")["spec"]
    assert [rule for rule in policy["ingress"] if {"port": target["containerPort"], "protocol": "TCP"} in rule["ports"]]


def test_without_the_api_nothing_of_the_cluster_is_touched() -> None:
    found = checked({"autoscaling": {"metricsApi": {"owner": "other"}}})
    assert not {"APIService", "ClusterRole", "ClusterRoleBinding"} & {o["kind"] for o in found}
    assert {o["metadata"]["namespace"] for o in found if o["kind"] == "RoleBinding"} == {"stratos"}
    assert settings(found).metrics_api.listen == ""
    assert kinds(found, "HorizontalPodAutoscaler"), "another provider feeds them"


def test_a_mode_for_each_pool() -> None:
    values: dict[str, Any] = {
        "prefillWorker": {"autoscaling": {"mode": "none"}, "replicas": 3},
        "decodeWorker": {"autoscaling": {"mode": "planner", "maxReplicas": 5}},
        "gateway": {"autoscaling": {"cpuPercent": 80}},
    }
    found = checked(values)
    assert one(found, "Deployment", "demo-prefill-base")["spec"]["replicas"] == 3
    assert "replicas" not in one(found, "Deployment", "demo-decode-base")["spec"]
    hpas = kinds(found, "HorizontalPodAutoscaler")
    assert set(hpas) == {"demo-gateway"}
    assert [metric["type"] for metric in hpas["demo-gateway"]["spec"]["metrics"]] == ["External", "Resource"]
    assert [(p.mode, p.max_workers) for p in pools(found)] == [
        (ScalingMode.PLANNER, 5),
        (ScalingMode.NONE, 3),
    ]
    off = checked({"decodeWorker": {"replicas": 0}})
    assert [p.role.value for p in pools(off)] == ["prefill"], "a pool that is switched off stays off"


def test_a_model_that_may_sleep_lets_its_requests_wait() -> None:
    scaling = {"autoscaling": {"minReplicas": 0}}
    found = checked({"prefillWorker": scaling, "decodeWorker": scaling, "autoscaling": {"wakeTimeoutSeconds": 120}})
    assert {p.min_workers for p in pools(found)} == {0}
    assert kinds(found, "HorizontalPodAutoscaler")["demo-decode-base"]["spec"]["minReplicas"] == 1
    assert variables(container(found, "demo-router"))["STRATOS_ROUTER_QUEUE__WAKE_TIMEOUT_S"] == "120"
    gateway = variables(container(found, "demo-gateway"))
    assert gateway["STRATOS_GATEWAY_HTTP__MAX_DEADLINE_S"] == "150"
    assert gateway["STRATOS_GATEWAY_REQUESTS__PLACEMENT_TIMEOUT_S"] == "150"
    one_half = checked({"decodeWorker": scaling})
    assert "STRATOS_ROUTER_QUEUE__WAKE_TIMEOUT_S" not in json.dumps(one_half)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mtls": {"enabled": False}}, "autoscaling.metricsApi.owner: the API needs the certificates"),
        ({"autoscaler": {"replicas": 0}}, "autoscaler.replicas: 0 leaves"),
        ({"autoscaling": {"metricsApi": {"owner": ""}}}, "autoscaling.metricsApi.owner: no cluster answers here"),
        ({"autoscaling": {"metricsApi": {"owner": "keda"}}}, "hpa: prefill-base, decode-base, gateway"),
        ({"decodeWorker": {"autoscaling": {"minReplicas": 11}}}, "models[base].decode.autoscaling: minReplicas (11)"),
        ({"decodeWorker": {"floor": 2}}, "models[base].decode.autoscaling.minReplicas: 2 must be larger than floor"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(RenderError) as refusal:
        rendered(values)
    assert text in str(refusal.value)


def test_a_refused_owner_is_told_the_choices() -> None:
    with pytest.raises(RenderError) as refusal:
        rendered({"autoscaling": {"metricsApi": {"owner": ""}}})
    for choice in ("release (", "keda (", "other (", "planner"):
        assert choice in str(refusal.value)


OURS = {"spec": {"service": {"namespace": "stratos", "name": "demo-autoscaler"}}}
KEDAS = {"spec": {"service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver"}}}


@pytest.mark.parametrize(
    ("owner", "is_asked", "found", "refused_for"),
    [
        ("", True, {}, ""),
        ("", True, OURS, ""),
        ("", True, KEDAS, "of keda/keda-operator-metrics-apiserver"),
        ("", False, {}, "no cluster answers"),
        ("release", False, {}, ""),
        ("release", True, OURS, ""),
        ("release", True, KEDAS, "of keda/keda-operator-metrics-apiserver"),
        ("other", True, KEDAS, ""),
        ("other", False, {}, ""),
    ],
)
def test_the_owner_of_the_api_is_never_overwritten(
    owner: str, is_asked: bool, found: dict[str, Any], refused_for: str
) -> None:
    values = {"autoscaling": {"metricsApi": {"owner": owner}}}
    said = said_by("stratos.metricsApiRefusal", values, {"isAsked": is_asked, "found": found})
    assert refused_for in said
    assert bool(said) == bool(refused_for)


def test_a_release_without_hpas_asks_for_no_api() -> None:
    off = {"autoscaling": {"mode": "none"}}
    found = rendered(
        {"autoscaling": {"metricsApi": {"owner": ""}}, "prefillWorker": off, "decodeWorker": off, "gateway": off}
    )
    assert not kinds(found, "APIService")


def test_an_external_owner_has_the_replicas_and_routers_wait_for_a_model_that_it_wakes() -> None:
    scaling = {"autoscaling": {"mode": "external", "minReplicas": 0}}
    found = checked(
        {
            "autoscaling": {"metricsApi": {"owner": "keda"}},
            "prefillWorker": scaling,
            "decodeWorker": scaling,
            "gateway": {"autoscaling": {"mode": "external"}},
        }
    )
    assert not kinds(found, "HorizontalPodAutoscaler")
    assert not kinds(found, "APIService")
    for name in ("demo-prefill-base", "demo-decode-base", "demo-gateway"):
        assert "replicas" not in one(found, "Deployment", name)["spec"]
    assert {pool.mode for pool in pools(found)} == {ScalingMode.EXTERNAL}
    assert variables(container(found, "demo-router"))["STRATOS_ROUTER_QUEUE__WAKE_TIMEOUT_S"] == "300"


def test_a_pool_that_gets_an_owner_keeps_its_size() -> None:
    """Left out, the field that the last revision set would become 1."""
    fixed = one(
        checked({"decodeWorker": {"autoscaling": {"mode": "none"}, "replicas": 5}}), "Deployment", "demo-decode-base"
    )
    assert said_by("stratos.keptReplicas", SERVED_HERE, {"live": fixed}) == "5"
    scaled = one(checked({}), "Deployment", "demo-decode-base")
    scaled["spec"]["replicas"] = 7  # the HPA's
    assert said_by("stratos.keptReplicas", SERVED_HERE, {"live": scaled}) == ""
    assert said_by("stratos.keptReplicas", SERVED_HERE, {"live": {}}) == ""


def test_metrics_are_added_and_the_behavior_is_replaced() -> None:
    more = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
    }
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 900}}
    scaling = {"metrics": [more], "behavior": behavior, "batchPercent": 0, "missedPromisesPercent": 5}
    scaling["batchLinesPerHour"] = 1500
    found = kinds(checked({"decodeWorker": {"autoscaling": scaling}}), "HorizontalPodAutoscaler")
    decode, prefill = found["demo-decode-base"]["spec"], found["demo-prefill-base"]["spec"]
    names = [metric.get("external", {}).get("metric", {}).get("name") for metric in decode["metrics"]]
    assert names == [
        "stratos_queue_depth", "stratos_kv_load", "stratos_batch_lines_due", "stratos_sla_violations", None
    ]  # fmt: skip
    assert decode["metrics"][2]["external"]["target"] == {"type": "AverageValue", "averageValue": "1500"}
    assert decode["metrics"][2]["external"]["metric"]["selector"] == {
        "matchLabels": {"release": "demo", "model": "base"}
    }
    assert decode["metrics"][3]["external"]["target"] == {"type": "Value", "value": "50m"}
    assert decode["metrics"][4] == more
    assert decode["behavior"] == behavior
    assert prefill["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0
