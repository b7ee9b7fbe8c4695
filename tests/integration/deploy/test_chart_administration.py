"""Parts of the chart for administrators: the toolbox, the first key, ports of an external Redis, policies by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from tests.support.kube.chart_objects import Object, container, kinds, one, pods, variables
from tests.support.kube.chart_rendering import checked, rendered
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


def test_an_external_redis_is_reached_at_the_ports_of_servers_and_sentinels() -> None:
    external = {"enabled": False, "external": {"urlSecret": {"name": "stores", "key": "url"}}}
    for values, expected in (({}, [6379, 26379]), ({"networkPolicies": {"redisPorts": [7000]}}, [7000])):
        found = checked({"redis": external, **values})
        rules = one(found, "NetworkPolicy", "demo-lora-registry")["spec"]["egress"]
        assert [port["port"] for port in rules[0]["ports"]] == expected


def test_the_toolbox_runs_only_when_asked_and_acts_as_an_administrator(defaults: list[Object]) -> None:
    assert one(defaults, "Deployment", "demo-toolbox")["spec"]["replicas"] == 0
    spec = one(defaults, "Deployment", "demo-toolbox")["spec"]["template"]["spec"]
    assert {v["name"]: v.get("secret", {}).get("secretName") for v in spec["volumes"]}["tls"] == "demo-tls-admin"
    tool = spec["containers"][0]
    environment = variables(tool)
    assert environment["STRATOS_REGISTRY"] == "demo-lora-registry:9000"
    assert environment["STRATOS_TLS_DOMAIN"] == "demo.stratos"
    assert "/model" in {mount["mountPath"] for mount in tool["volumeMounts"]}
    assert environment["STRATOS_S3_ENDPOINT"] == "http://demo-object-store:9300"
    found = checked(
        {
            "toolbox": {"replicas": 1},
            "mtls": {"enabled": False},
            "autoscaling": {"metricsApi": {"owner": "other"}},
        }
    )
    assert one(found, "Deployment", "demo-toolbox")["spec"]["replicas"] == 1


def rights(role: Object) -> Iterator[str]:
    """As ``kubectl auth can-i --list`` writes them."""
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                kind, slash, sub = resource.partition("/")
                name = f"{kind}.{group}".rstrip(".") + slash + sub
                for named in rule.get("resourceNames", [""]):
                    yield f"{name} [] [{named}] [{' '.join(rule['verbs'])}]"


def test_accounts_may_what_a_cluster_is_asked_for() -> None:
    """The same table as that of point 3 of `make e2e`, so that it does not fall behind the chart."""
    values = {pool: {"autoscaling": {"mode": "none"}} for pool in ("gateway", "prefillWorker", "decodeWorker")}
    found = checked({**values, "autoscaling": {"metricsApi": {"owner": ""}}}, release="stratos")
    roles = kinds(found, "Role")
    assert not set(kinds(found, "ClusterRole"))
    allowed = {name: sorted(rights(roles[name])) if name in roles else [] for name in kinds(found, "ServiceAccount")}
    assert allowed == json.loads((FIXTURES / "kubernetes" / "rights.json").read_text())


def test_the_first_key_has_the_role_that_the_values_name(defaults: list[Object]) -> None:
    for objects, role in ((defaults, "tenant"), (checked({"credentials": {"role": "admin"}}), "admin")):
        command = store_setup(objects)["command"]
        assert {f"--role={role}", "--plan=local"} <= set(command)


@pytest.mark.parametrize("is_supplied", [False, True])
def test_first_keys_are_in_a_store_before_a_gateway_can_follow_it(*, is_supplied: bool) -> None:
    """One process sets it up with them. A key that a job makes is waited for, also one that an upgrade adds."""
    supplied = {"credentials": {"existingSecret": "keys"}} if is_supplied else {}
    found = store_setup(checked({"gateway": {"admin": {"enabled": True}}, **supplied}))
    sources = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in found["env"] if "valueFrom" in entry}
    keys = {name: sources[name] for name in ("STRATOS_FIRST_KEY", "STRATOS_FIRST_ADMIN_KEY", "STRATOS_KEY_PEPPER")}
    assert [source["key"] for source in keys.values()] == ["api-key", "admin-key", "key-pepper"]
    assert [source.get("optional", False) for source in keys.values()] == [is_supplied, is_supplied, False]


def store_setup(objects: list[Object]) -> dict[str, Any]:
    """The one container that touches the store of an installation."""
    (found,) = [c for p in pods(objects) for c in p.containers if {"init-store", "add-key"} & set(c.get("command", ()))]
    return found


def test_policies_of_ones_own_may_be_named() -> None:
    custom = {"site": {"filters": ["zone"], "scorers": {"load": 1.0}, "picker": "best"}}
    found = checked({"router": {"config": {"policies": {"default": "site", "custom": custom}}}})
    assert variables(container(found, "demo-router"))["STRATOS_ROUTER_POLICIES__DEFAULT"] == "site"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"router": {"config": {"policies": {"default": "prefx"}}}}, 'policies.default: there is no policy "prefx"'),
        (
            {"router": {"config": {"policies": {"pools": {"decode": "x"}}}}},
            'policies.pools[decode]: there is no policy "x"',
        ),
        ({"router": {"config": {"policies": {"custom": {"a": {"picker": "bst"}}}}}}, "/custom/a/picker"),
    ],
)
def test_refusals_name_the_value(values: dict[str, Any], text: str) -> None:
    with pytest.raises(RenderError) as refusal:
        rendered(values)
    assert text in str(refusal.value)
