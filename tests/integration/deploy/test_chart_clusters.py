"""Other people's clusters: users, DNS, identities, registries and nodes that are not as the defaults assume."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scripts.chart.rendering import NO_RENDERER, has_renderer
from tests.support.kube.chart_objects import Object, kinds, one, pod_spec, pods
from tests.support.kube.chart_policies import breaches
from tests.support.kube.chart_rendering import checked, rendered
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
DEAD = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
DIGEST = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


def test_a_cluster_that_gives_users_itself_gets_none() -> None:
    for pod in pods(rendered({"podSecurity": {"user": 0}})):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context), pod.owner


def test_pods_without_volumes_leave_a_dead_node_soon(defaults: list[Object]) -> None:
    for pod in pods(defaults):
        seconds = {t["key"]: t["tolerationSeconds"] for t in pod.spec.get("tolerations", ()) if t["key"] in DEAD}
        is_replaced = pod.component in (
            "gateway",
            "router",
            "prefill-worker",
            "decode-worker",
            "autoscaler",
            "lora-registry",
        )
        assert seconds == (dict.fromkeys(DEAD, 30) if is_replaced else {}), pod.owner
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    found = checked({"router": {"scheduling": {"tolerations": [own]}}})
    assert [t["tolerationSeconds"] for t in pod_spec(found, "demo-router")["tolerations"]] == [5, 30]
    assert "tolerations" not in pod_spec(checked({"deadNodeSeconds": 0}), "demo-router")


def test_gateways_and_routers_never_share_a_node_where_there_are_others(defaults: list[Object]) -> None:
    for name, rule in (
        ("demo-gateway", "DoNotSchedule"),
        ("demo-router", "DoNotSchedule"),
        ("demo-decode-base", "ScheduleAnyway"),
    ):
        (spread,) = [
            s
            for s in pod_spec(defaults, name)["topologySpreadConstraints"]
            if s["topologyKey"] == "kubernetes.io/hostname"
        ]
        assert spread["whenUnsatisfiable"] == rule


def test_a_gateway_lets_streams_end(defaults: list[Object]) -> None:
    assert pod_spec(defaults, "demo-gateway")["terminationGracePeriodSeconds"] > 600


def egress(objects: list[Object], component: str) -> list[Any]:
    found: list[Any] = one(objects, "NetworkPolicy", f"demo-{component}")["spec"]["egress"]
    return found


def test_the_pods_own_identity_is_reached_where_s3_needs_it() -> None:
    def reaches(objects: list[Object], component: str) -> bool:
        return "169.254.169.254/32" in yaml.safe_dump(egress(objects, component))

    own = checked({"objectStore": {"url": "s3://bucket"}})
    assert all(reaches(own, name) for name in ("gateway", "decode-worker", "lora-registry", "tools"))
    assert not reaches(own, "router")
    for store in ({"url": "s3://bucket", "s3": {"credentialsSecret": "stores"}}, {}):
        assert not reaches(checked({"objectStore": store}), "gateway")
    closed = checked({"objectStore": {"url": "s3://bucket"}, "networkPolicies": {"cloudIdentity": []}})
    assert not reaches(closed, "gateway")


def test_dns_may_be_elsewhere() -> None:
    local = [{"ipBlock": {"cidr": "169.254.20.10/32"}}]
    (dns,) = [
        rule
        for rule in egress(checked({"networkPolicies": {"dns": local, "dnsPorts": [53, 5353]}}), "router")
        if rule.get("to") == local
    ]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {
        (number, protocol) for number in (53, 5353) for protocol in ("TCP", "UDP")
    }


def test_images_by_digest_and_accounts_by_component() -> None:
    source = {"image": {"repository": "models/chat", "digest": DIGEST}}
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/weights"}
    values = {
        "image": {"registry": "mirror.example.com", "pullSecrets": ["mirror"]},
        "gateway": {"image": {"digest": DIGEST}},
        "models": [{"name": "base", "source": source}],
        "serviceAccounts": {"annotations": {"team": "a"}, "components": {"decode-worker": role}},
    }
    found = checked(values)
    spec = pod_spec(found, "demo-gateway")
    assert spec["containers"][0]["image"] == f"mirror.example.com/stratosserve/gateway@{DIGEST}"
    assert spec["initContainers"][0]["image"] == f"mirror.example.com/models/chat@{DIGEST}"
    assert all(pod.spec["imagePullSecrets"] == [{"name": "mirror"}] for pod in pods(found))
    accounts = kinds(found, "ServiceAccount")
    assert accounts["demo-decode-worker"]["metadata"]["annotations"] == {"team": "a", **role}
    assert accounts["demo-redis"]["metadata"]["annotations"] == {"team": "a"}


def test_volumes_mounts_and_containers_of_ones_own() -> None:
    more = {
        "extraVolumes": [{"name": "plugin", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "plugin", "mountPath": "/opt/plugin"}],
        "sidecars": [{"name": "beside", "image": "example.com/beside:1"}],
    }
    for value, name in (
        ("decodeWorker", "demo-decode-base"),
        ("gateway", "demo-gateway"),
        ("router", "demo-router"),
    ):
        spec = pod_spec(rendered({value: more}), name)
        assert [c["name"] for c in spec["containers"]][1:] == ["beside"]
        assert more["extraVolumes"][0] in spec["volumes"]
        assert more["extraVolumeMounts"][0] in spec["containers"][0]["volumeMounts"]


def test_the_values_for_production_keep_the_rules_and_survive_a_lost_node() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "production.values.yaml").read_text())
    found = rendered(values)
    assert breaches(found) == []
    hpas = kinds(found, "HorizontalPodAutoscaler")
    budgets = kinds(found, "PodDisruptionBudget")
    for name, hpa in hpas.items():
        assert hpa["spec"]["minReplicas"] > budgets[name]["spec"]["minAvailable"] >= 2
    for name in ("demo-router", "demo-lora-registry", "demo-autoscaler"):
        assert one(found, "Deployment", name)["spec"]["replicas"] >= 2
    assert not kinds(found, "PersistentVolumeClaim"), "nothing of it is kept by one pod"


@pytest.mark.parametrize("place", ["zone", "region"])
def test_gateways_and_workers_know_the_place_of_their_node(place: str) -> None:
    label = {"fieldRef": {"fieldPath": f"metadata.labels['topology.kubernetes.io/{place}']"}}
    places = {"zone": "a", "region": "b"}
    names = {"gateway": "demo-gateway", "decodeWorker": "demo-decode-base"}
    prefixes = {"gateway": "STRATOS_GATEWAY_", "decodeWorker": "STRATOS_DECODE_WORKER_"}
    named = checked({service: {"config": places} for service in prefixes})
    by_hand = checked({
        service: {"extraEnv": [{"name": prefix + one.upper(), "value": f"own {one}"} for one in places]}
        for service, prefix in prefixes.items()
    })  # fmt: skip
    cases = (
        (checked({}), {"valueFrom": label}),
        (named, {"value": places[place]}),
        (by_hand, {"value": f"own {place}"}),
    )
    for service, prefix in prefixes.items():
        name, variable = names[service], prefix + place.upper()
        for objects, said in cases:
            found = [entry for entry in pod_spec(objects, name)["containers"][0]["env"] if entry["name"] == variable]
            assert found == [{"name": variable, **said}]
