"""Certificates of the chart: its own, supplied ones, those of cert-manager, and what is open without them."""

from __future__ import annotations

import json

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.common.tls.identity import Identity, PeerRole
from tests.support.kube.chart_objects import Object, container, kinds, one, pod_spec, pods, variables
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
GRPC_PORT = 9000
NO_METRICS_API = {"autoscaling": {"metricsApi": {"owner": "other"}}}


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


def test_mtls_is_on_and_its_job_may_write_its_own_secrets_alone(defaults: list[Object]) -> None:
    spec = pod_spec(defaults, "demo-prefill-base")
    (held,) = [v["secret"] for v in spec["volumes"] if v["name"] == "tls"]
    assert held["secretName"] == "demo-tls-prefill-worker"
    environment = variables(spec["containers"][0])
    assert environment["STRATOS_PREFILL_WORKER_TLS__DOMAIN"] == "demo.stratos"
    rules = one(defaults, "Role", "demo-certificates")["rules"]
    assert {verb for rule in rules if "resourceNames" not in rule for verb in rule["verbs"]} == {"create"}
    assert all(name.startswith("demo-tls-") or name == "demo-credentials" for name in rules[0]["resourceNames"])
    with_token = [p.component for p in pods(defaults) if p.spec["automountServiceAccountToken"]]
    assert sorted(with_token) == ["autoscaler", *["certificates"] * 4]
    hook = one(defaults, "Job", "demo-certificates-remove")["metadata"]["annotations"]
    assert hook["helm.sh/hook"] == "pre-delete"
    cron = one(defaults, "CronJob", "demo-certificates")["spec"]["jobTemplate"]["spec"]
    assert cron["activeDeadlineSeconds"] < 3600, "one that hangs keeps none after it from running"


def test_jobs_of_certificates_go_before_ordinary_pods_where_nodes_are_full(defaults: list[Object]) -> None:
    of_jobs = {p.owner: p.spec.get("priorityClassName") for p in pods(defaults) if p.component == "certificates"}
    assert len(of_jobs) == 4
    assert set(of_jobs.values()) == {pod_spec(defaults, "demo-router")["priorityClassName"]}
    unranked = checked({"priorityClasses": {"create": False}})
    assert not any("priorityClassName" in p.spec for p in pods(unranked) if p.component == "certificates")


def kv_ports(objects: list[Object]) -> list[tuple[int, int]]:
    """First and last port on which decode workers take KV from prefill workers, who also call them."""
    rules = one(objects, "NetworkPolicy", "demo-decode-worker")["spec"]["ingress"]
    ports = [port for rule in rules for port in rule["ports"] if matches_component(rule, "prefill-worker")]
    assert {"port": GRPC_PORT, "protocol": "TCP"} in ports
    return [(port["port"], port.get("endPort", port["port"])) for port in ports if port["port"] != GRPC_PORT]


def matches_component(rule: Object, component: str) -> bool:
    selectors = [peer.get("podSelector", {}).get("matchLabels", {}) for peer in rule.get("from", [])]
    return any(labels.get("app.kubernetes.io/component") == component for labels in selectors)


def test_kv_is_encrypted_on_one_port_unless_the_risk_is_named(defaults: list[Object]) -> None:
    worker = variables(container(defaults, "demo-decode-base"))
    assert worker["STRATOS_DECODE_WORKER_TRANSPORT__NAMES"] == '["tls"]'
    assert worker["STRATOS_DECODE_WORKER_TRANSPORT__TLS__PORT"] == "9200"
    assert kv_ports(defaults) == [(9200, 9200)]
    config = {"config": {"transport": {"names": ["tls", "gloo"], "allowUnencryptedGloo": True}}}
    assert kv_ports(checked({"decodeWorker": config, "prefillWorker": config})) == [(9200, 9200), (32768, 60999)]
    assert kv_ports(checked({"mtls": {"enabled": False}, **NO_METRICS_API})) == [(32768, 60999)]


def test_supplied_certificates_need_no_job_and_no_rights() -> None:
    found = checked(
        {
            "mtls": {"source": "secrets", "secretPrefix": "site-tls", "domain": "site"},
            "credentials": {"existingSecret": "mine"},
        }
    )
    assert "CronJob" not in {o["kind"] for o in found}
    assert not [name for kind in ("Role", "RoleBinding") for name in kinds(found, kind) if "certificates" in name]
    (held,) = [v["secret"] for v in pod_spec(found, "demo-router")["volumes"] if v["name"] == "tls"]
    assert held["secretName"] == "site-tls-router"
    assert variables(container(found, "demo-router"))["STRATOS_ROUTER_TLS__DOMAIN"] == "site"


@pytest.mark.parametrize(("issuer", "num_own"), [({}, 1), ({"name": "company", "kind": "ClusterIssuer"}, 0)])
def test_certificates_of_cert_manager_name_what_peers_expect(issuer: dict[str, str], num_own: int) -> None:
    """No controller acted on them: their fields are those that the services' own certificates have."""
    found = checked({"mtls": {"source": "certManager", "certManager": {"issuerRef": issuer}}})
    certificates = {o["spec"]["secretName"]: o["spec"] for o in found if o["kind"] == "Certificate"}
    own = {
        PeerRole.AUTOSCALER: ("demo-autoscaler.stratos.svc",),
        PeerRole.REDIS: ("demo-redis", "demo-redis.stratos.svc"),
    }
    for role in set(PeerRole) - {PeerRole.SUPERVISOR}:
        identity, spec = Identity("demo.stratos", role), certificates[f"demo-tls-{role}"]
        assert spec["uris"] == [identity.uri]
        assert tuple(spec["dnsNames"]) == (*identity.dns_names, *own.get(role, ()))
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["issuerRef"]["name"] == issuer.get("name", "demo-tls-ca")
    assert sum(spec.get("isCA", False) for spec in certificates.values()) == num_own


def test_the_api_over_tls() -> None:
    found = checked({"gateway": {"tls": {"secretName": "public"}, "service": {"tlsPort": 8443}}})
    (held,) = [v["secret"] for v in pod_spec(found, "demo-gateway")["volumes"] if v["name"] == "http-tls"]
    assert held["secretName"] == "public"
    environment = variables(container(found, "demo-gateway"))
    assert environment["STRATOS_GATEWAY_HTTP_TLS__KEY_PATH"] == "/etc/stratos/http-tls/tls.key"
    (port,) = one(found, "Service", "demo-gateway")["spec"]["ports"]
    assert (port["name"], port["port"]) == ("https", 8443)
    (test,) = one(found, "Pod", "demo-test-stream")["spec"]["containers"]
    assert variables(test)["STRATOS_TEST_URL"] == "https://demo-gateway.stratos.svc:8443"


def test_without_mtls_there_is_nothing_of_it() -> None:
    found = checked({"mtls": {"enabled": False}, **NO_METRICS_API})
    assert [o for o in found if "tls" in json.dumps(o)] == []


@pytest.mark.parametrize(
    ("job", "refusal"),
    [
        ({"lifetimeDays": 2}, r"mtls\.job\.lifetimeDays: is 2, and must be 3 or more where overlapSeconds is 86400"),
        ({"caLifetimeDays": 14}, r"mtls\.job\.caLifetimeDays: is 14, and must be 15 or more"),
        ({"lifetimeDays": 1, "caLifetimeDays": 5, "overlapSeconds": 28800}, ""),
    ],
)
def test_certificates_that_would_end_before_others_are_there_are_refused(job: dict[str, int], refusal: str) -> None:
    if not refusal:
        assert kinds(rendered({"mtls": {"job": job}}), "CronJob")
        return
    with pytest.raises(RenderError, match=refusal):
        rendered({"mtls": {"job": job}})
    assert rendered({"mtls": {"job": job, "source": "secrets"}})
