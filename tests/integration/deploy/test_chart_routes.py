"""Ways in: a host leads to one model, bodies and streams pass, and TLS reaches the gateways."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from tests.support.kube.chart_objects import kinds, one
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
TLS = {"tls": {"secretName": "api-tls"}}
ROUTE: dict[str, Any] = {"enabled": True, "parentRefs": [{"name": "public"}]}


def models(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "source": {"claim": {"name": name}}} for name in names]


def test_models_share_every_way_in() -> None:
    way = {"ingress": {"enabled": True, "hosts": ["a.example", "b.example"]}, "route": ROUTE}
    objects = checked({"models": models("small", "large"), "gateway": way})
    rules = one(objects, "Ingress", "demo-gateway")["spec"]["rules"]
    assert [(rule["host"], rule["http"]["paths"][0]["backend"]["service"]["name"]) for rule in rules] == [
        ("a.example", "demo-gateway"),
        ("b.example", "demo-gateway"),
    ]
    assert [found["metadata"]["name"] for found in objects if found["kind"] == "HTTPRoute"] == ["demo-gateway"]


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"hosts": ["a.example"]}, r"models.large..hosts: .*gateway\.ingress\.hosts"),
        ({"gateway": {"config": {}, "replicas": 3}}, r"models.large..gateway: .*models.large..terms"),
        ({"servedName": "small"}, "another model is served as .*small"),
    ],
)
def test_values_of_gateways_for_each_model_are_refused_by_name(old: dict[str, Any], said: str) -> None:
    small, large = models("small", "large")
    with pytest.raises(RenderError, match=said):
        rendered({"models": [small, large | old]})


def test_an_ingress_without_hosts_leads_every_host_to_the_model() -> None:
    rules = one(checked({"gateway": {"ingress": {"enabled": True}}}), "Ingress", "demo-gateway")["spec"]["rules"]
    assert [rule.get("host") for rule in rules] == [None]
    assert rules[0]["http"]["paths"][0]["backend"]["service"]["name"] == "demo-gateway"


def test_nginx_passes_the_bodies_and_streams_that_the_gateway_takes() -> None:
    ingress = {"enabled": True, "controller": "nginx", "annotations": {"own": "1"}}
    found = one(checked({"gateway": {"ingress": ingress, **TLS}}), "Ingress", "demo-gateway")["metadata"]["annotations"]
    assert found["own"] == "1"
    assert found["nginx.ingress.kubernetes.io/proxy-body-size"] == "0", "files are larger than requests"
    assert found["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(found["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    assert found["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
    plain = one(checked({"gateway": {"ingress": {"enabled": True}}}), "Ingress", "demo-gateway")
    assert "annotations" not in plain["metadata"]


def test_a_gateway_that_speaks_tls_with_ours_knows_whose_certificate_it_checks() -> None:
    with pytest.raises(RenderError, match=r"gateway\.route\.backendTls\.hostname"):
        rendered({"gateway": {"route": ROUTE, **TLS}})
    route = {**ROUTE, "backendTls": {"hostname": "api.example.com", "caConfigMap": "api-ca"}}
    objects = checked({"gateway": {"route": route, **TLS}})
    spec = one(objects, "BackendTLSPolicy", "demo-gateway")["spec"]
    (target,) = spec["targetRefs"]
    backend = one(objects, "HTTPRoute", "demo-gateway")["spec"]["rules"][0]["backendRefs"][0]
    assert (target["kind"], target["name"], backend["port"]) == ("Service", backend["name"], 443)
    assert spec["validation"] == {
        "hostname": "api.example.com",
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "api-ca"}],
    }
    assert not [found for found in checked({"gateway": {"route": ROUTE}}) if found["kind"] == "BackendTLSPolicy"]


def test_a_route_may_lead_to_a_pool_of_the_gateways() -> None:
    with pytest.raises(RenderError, match=r"endpointPicker\.name"):
        rendered({"gateway": {"route": {**ROUTE, "inferencePool": {"enabled": True}}}})
    picked = {"enabled": True, "endpointPicker": {"name": "picker"}}
    own = {**ROUTE, "inferencePool": picked, "backendTls": {"hostname": "api.example.com"}}
    with pytest.raises(RenderError, match=r"inferencePool: .*gateway\.tls"):
        rendered({"gateway": {"route": own, **TLS}})
    objects = checked({"gateway": {"route": {**ROUTE, "inferencePool": picked}}})
    (backend,) = one(objects, "HTTPRoute", "demo-gateway")["spec"]["rules"][0]["backendRefs"]
    pool = one(objects, "InferencePool", backend["name"])["spec"]
    pods = one(objects, "Deployment", "demo-gateway")["spec"]["template"]
    assert pool["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in pods["spec"]["containers"][0]["ports"]}
    assert pool["targetPorts"] == [{"number": ports["http"]}]
    assert pool["endpointPickerRef"] == {"name": "picker", "port": {"number": 9002}}


def test_models_have_one_balancer_and_older_names_where_they_are_asked_for() -> None:
    service = {
        "type": "LoadBalancer", "loadBalancerClass": "internal", "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }  # fmt: skip
    values = {"models": models("small", "large"), "gateway": {"service": service}}
    objects = checked(values)
    assert not {"demo-gateway-small", "demo-gateway-large"} & kinds(objects, "Service").keys()
    spec = one(objects, "Service", "demo-gateway")["spec"]
    assert spec["loadBalancerClass"] == "internal"
    assert spec["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert spec["externalTrafficPolicy"] == "Local"
    named = checked(values | {"gateway": {"service": service | {"perModel": True}}})
    pod = one(named, "Deployment", "demo-gateway")["spec"]["template"]["metadata"]["labels"]
    older = {name: one(named, "Service", name)["spec"] for name in ("demo-gateway-small", "demo-gateway-large")}
    assert all(found["selector"].items() <= pod.items() for found in older.values())
    assert [found["type"] for found in older.values()] == ["ClusterIP", "LoadBalancer"]
