"""The admin API, declared tenants and token issuers in the chart. Needs a renderer, as ``test_chart_options`` says."""

from __future__ import annotations

import json

import pytest
import yaml

from scripts.chart_rendering import NO_RENDERER, RenderError, has_renderer, render
from tests.support.chart_objects import Object, container, kinds, one, variables
from tests.support.chart_rendering import checked

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


def test_the_admin_api_has_a_port_and_a_key_of_its_own_and_applies_what_is_declared(defaults: list[Object]) -> None:
    assert "demo-gateway-admin" not in kinds(defaults, "Service")
    declaration = {"plans": {"gold": {"prices": {"8b": {"prompt": 10}}}}, "tenants": {"acme": {"plan": "gold"}}}
    clients = [{"namespaceSelector": {"matchLabels": {"team": "platform"}}}]
    found = checked(
        {
            "gateway": {"admin": {"enabled": True}},
            "declaration": declaration,
            "networkPolicies": {"adminClients": clients},
        }
    )
    gateway = container(found, "demo-gateway-base")
    assert variables(gateway)["STRATOS_GATEWAY_ADMIN__LISTEN"] == "0.0.0.0:8001"
    assert {"name": "admin", "containerPort": 8001} in gateway["ports"]
    (port,) = one(found, "Service", "demo-gateway-admin")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "admin")
    assert "admin-key" in one(found, "Secret", "demo-credentials")["data"]
    policy = one(found, "NetworkPolicy", "demo-gateway")["spec"]["ingress"]
    reached = [rule["from"] for rule in policy if rule["ports"] == [{"port": 8001, "protocol": "TCP"}]]
    assert reached[0] == clients
    assert reached[1][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "tools"
    job = one(found, "Job", "demo-declaration-1")["spec"]["template"]["spec"]["containers"][0]
    assert "--url=http://demo-gateway-admin" in job["command"]
    assert yaml.safe_load(one(found, "ConfigMap", "demo-declaration-1")["data"]["tenants.yaml"]) == declaration
    with pytest.raises(RenderError, match=r"needs gateway\.admin\.enabled"):
        render({"declaration": declaration})


def test_gateways_reach_the_issuers_that_they_take_tokens_of(defaults: list[Object]) -> None:
    def egress(objects: list[Object]) -> list[Object]:
        rules = one(objects, "NetworkPolicy", "demo-gateway")["spec"]["egress"]
        return [rule for rule in rules if rule["ports"] == [{"port": 443, "protocol": "TCP"}]]

    issuer = {"issuer": "https://id.example.com", "audience": "stratos", "roles": {"ops": "admin"}}
    found = checked({"gateway": {"config": {"oidc": {"issuers": [issuer]}}}})
    assert json.loads(variables(container(found, "demo-gateway-base"))["STRATOS_GATEWAY_OIDC__ISSUERS"]) == [issuer]
    assert (len(egress(defaults)), len(egress(found))) == (0, 1)
