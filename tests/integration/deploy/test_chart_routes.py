"""Ways in: a host leads to one model, bodies and streams pass, and TLS reaches the gateways."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from tests.support.kube.chart_objects import one
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
TLS = {"tls": {"secretName": "api-tls"}}
ROUTE: dict[str, Any] = {"enabled": True, "parentRefs": [{"name": "public"}]}


def models(*hosts: list[str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "hosts": own, "source": {"claim": {"name": name}}}
        for name, own in zip(("small", "large"), hosts, strict=True)
    ]


@pytest.mark.parametrize("way", [{"ingress": {"enabled": True}}, {"route": ROUTE}])
@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (([], []), "every host leads to small already"),
        ((["a.example"], ["a.example"]), "a.example leads to small already"),
    ],
)
def test_two_models_never_share_a_host(way: dict[str, Any], hosts: tuple[list[str], list[str]], said: str) -> None:
    with pytest.raises(RenderError, match=f"models.large..hosts: {said}"):
        rendered({"models": models(*hosts), "gateway": way})
    assert checked({"models": models([], ["b.example"]), "gateway": way})


def test_a_later_model_without_hosts_takes_none_that_are_left() -> None:
    way = {"ingress": {"enabled": True}, "route": ROUTE}
    objects = checked({"models": models(["a.example"], []), "gateway": way})
    rules = one(objects, "Ingress", "demo-gateway")["spec"]["rules"]
    assert [rule.get("host") for rule in rules] == ["a.example"]
    assert [found["metadata"]["name"] for found in objects if found["kind"] == "HTTPRoute"] == ["demo-gateway-small"]


def test_hosts_are_taken_in_each_way_by_itself() -> None:
    way = {"ingress": {"enabled": True, "hosts": ["a.example"]}, "route": ROUTE}
    with pytest.raises(RenderError, match=r"models.large..hosts: every host leads to small already"):
        rendered({"models": models([], []), "gateway": way})
    with pytest.raises(RenderError, match=r"models.large..hosts: a\.example leads to small already"):
        rendered({"models": models([], ["a.example"]), "gateway": way})


def test_an_ingress_without_hosts_leads_every_host_to_the_model() -> None:
    rules = one(checked({"gateway": {"ingress": {"enabled": True}}}), "Ingress", "demo-gateway")["spec"]["rules"]
    assert [rule.get("host") for rule in rules] == [None]
    assert rules[0]["http"]["paths"][0]["backend"]["service"]["name"] == "demo-gateway-base"


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
    spec = one(objects, "BackendTLSPolicy", "demo-gateway-base")["spec"]
    (target,) = spec["targetRefs"]
    backend = one(objects, "HTTPRoute", "demo-gateway-base")["spec"]["rules"][0]["backendRefs"][0]
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
    (backend,) = one(objects, "HTTPRoute", "demo-gateway-base")["spec"]["rules"][0]["backendRefs"]
    pool = one(objects, "InferencePool", backend["name"])["spec"]
    pods = one(objects, "Deployment", "demo-gateway-base")["spec"]["template"]
    assert pool["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in pods["spec"]["containers"][0]["ports"]}
    assert pool["targetPorts"] == [{"number": ports["http"]}]
    assert pool["endpointPickerRef"] == {"name": "picker", "port": {"number": 9002}}


def test_a_model_has_one_balancer() -> None:
    service = {
        "type": "LoadBalancer", "loadBalancerClass": "internal", "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }  # fmt: skip
    objects = checked({"models": models([], ["b.example"]), "gateway": {"service": service}})
    types = {
        name: one(objects, "Service", name)["spec"]["type"]
        for name in ("demo-gateway", "demo-gateway-small", "demo-gateway-large")
    }
    assert types == {
        "demo-gateway": "LoadBalancer", "demo-gateway-small": "ClusterIP", "demo-gateway-large": "LoadBalancer",
    }  # fmt: skip
    spec = one(objects, "Service", "demo-gateway")["spec"]
    assert spec["loadBalancerClass"] == "internal"
    assert spec["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert spec["externalTrafficPolicy"] == "Local"


def test_every_model_has_its_port_of_the_nodes() -> None:
    service = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    objects = checked({"models": models([], ["b.example"]), "gateway": {"service": service}})
    for name in ("demo-gateway", "demo-gateway-small", "demo-gateway-large"):
        assert one(objects, "Service", name)["spec"].items() >= service.items()
