"""The admin API, declared tenants and token issuers in the chart. Needs a renderer, as ``test_chart_options`` says."""

from __future__ import annotations

import json

import pytest
import yaml

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from tests.support.kube.chart_objects import Object, container, kinds, one, variables
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


def declaration_job(objects: list[Object]) -> Object:
    """Its pod."""
    (found,) = [o for name, o in kinds(objects, "Job").items() if name.startswith("demo-declaration-")]
    spec: Object = found["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


def test_the_admin_api_has_a_port_and_a_key_of_its_own_and_applies_what_is_declared(defaults: list[Object]) -> None:
    assert "demo-gateway-admin" not in kinds(defaults, "Service")
    declaration = {
        "policies": {"strict": {"rules": []}},
        "plans": {"gold": {"prices": {"8b": {"prompt": 10}}}},
        "tenants": {"acme": {"plan": "gold"}},
    }
    clients = [{"namespaceSelector": {"matchLabels": {"team": "platform"}}}]
    found = checked(
        {
            "gateway": {"admin": {"enabled": True}},
            "declaration": declaration,
            "networkPolicies": {"adminClients": clients},
        }
    )
    gateway = container(found, "demo-gateway")
    assert variables(gateway)["STRATOS_GATEWAY_ADMIN__LISTEN"] == "0.0.0.0:8001"
    assert {"name": "admin", "containerPort": 8001} in gateway["ports"]
    (port,) = one(found, "Service", "demo-gateway-admin")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "admin")
    (maker,) = [o for name, o in kinds(found, "Job").items() if name.startswith("demo-credentials-")]
    assert "--make=admin-key" in maker["spec"]["template"]["spec"]["containers"][0]["command"]
    policy = one(found, "NetworkPolicy", "demo-gateway")["spec"]["ingress"]
    reached = [rule["from"] for rule in policy if rule["ports"] == [{"port": 8001, "protocol": "TCP"}]]
    assert reached[0] == clients
    assert reached[1][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "tools"
    job = declaration_job(found)["containers"][0]
    assert "--url=https://demo-gateway-admin" in job["command"]
    (held,) = [o for name, o in kinds(found, "ConfigMap").items() if name.startswith("demo-declaration-")]
    assert yaml.safe_load(held["data"]["tenants.yaml"]) == declaration
    assert declaration_job(found)["volumes"][-1]["configMap"]["name"] == held["metadata"]["name"]
    tool = variables(container(found, "demo-toolbox"))
    assert tool["STRATOS_ADMIN_URL"] == "https://demo-gateway-admin"
    assert "STRATOS_ADMIN_KEY" in tool
    with pytest.raises(RenderError, match=r"needs gateway\.admin\.enabled"):
        rendered({"declaration": declaration})


def test_a_declaration_may_be_a_file_of_ones_own() -> None:
    admin = {"gateway": {"admin": {"enabled": True}}}
    found = checked({**admin, "declaration": {"configMap": {"name": "prices", "key": "plans.yaml"}}})
    assert not [name for name in kinds(found, "ConfigMap") if name.startswith("demo-declaration")]
    (_, _, volume) = declaration_job(found)["volumes"]
    assert volume["configMap"] == {"name": "prices", "items": [{"key": "plans.yaml", "path": "tenants.yaml"}]}
    with pytest.raises(RenderError, match=r"declaration\.configMap: takes the place of declaration\.tenants"):
        rendered({**admin, "declaration": {"configMap": {"name": "prices"}, "tenants": {"acme": {"plan": "gold"}}}})


def test_gateways_reach_the_issuers_that_they_take_tokens_of(defaults: list[Object]) -> None:
    def egress(objects: list[Object]) -> list[Object]:
        rules = one(objects, "NetworkPolicy", "demo-gateway")["spec"]["egress"]
        return [rule for rule in rules if rule["ports"] == [{"port": 443, "protocol": "TCP"}]]

    issuer = {"issuer": "https://id.example.com", "audience": "stratos", "roles": {"ops": "admin"}, "tenants": ["*"]}
    found = checked({"gateway": {"config": {"oidc": {"issuers": [issuer]}}}})
    assert json.loads(variables(container(found, "demo-gateway"))["STRATOS_GATEWAY_OIDC__ISSUERS"]) == [issuer]
    assert (len(egress(defaults)), len(egress(found))) == (0, 1)


def test_authorities_of_issuers_are_mounted() -> None:
    known = {"issuer": "https://id.example.com", "audience": "stratos", "tenants": ["acme"]}
    issuer = {**known, "ca_path": "/etc/stratos/oidc/ca.crt"}
    secret = {"name": "authorities", "key": "company"}
    found = checked({"gateway": {"oidc": {"caSecret": secret}, "config": {"oidc": {"issuers": [issuer]}}}})
    spec = one(found, "Deployment", "demo-gateway")["spec"]["template"]["spec"]
    (held,) = [v["secret"] for v in spec["volumes"] if v["name"] == "oidc-ca"]
    assert held == {"secretName": "authorities", "items": [{"key": "company", "path": "ca.crt"}]}
    assert {m["mountPath"] for m in spec["containers"][0]["volumeMounts"]} >= {"/etc/stratos/oidc"}
