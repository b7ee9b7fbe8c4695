"""One test per option of the chart: what a value changes in rendered objects, which stay valid and within the rules.

Needs a renderer: `helm` on the path, or the package helm-python-sdk. Without one these tests are skipped, and say so.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.chart_rendering import NO_RENDERER, RenderError, has_renderer, render
from stratos.common.tls.identity import Identity, PeerRole
from tests.support.chart_objects import Object, container, kinds, one, pods, variables
from tests.support.chart_policies import breaches
from tests.support.chart_rendering import checked
from tests.support.kubernetes_schema import problems

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


NO_METRICS_API = {"autoscaling": {"metricsApi": {"create": False}}}


def pod_spec(objects: list[Object], name: str) -> Object:
    return dict(one(objects, "Deployment", name)["spec"]["template"]["spec"])


def test_six_services_and_their_stores(defaults: list[Object]) -> None:
    assert set(kinds(defaults, "Deployment")) == {
        "demo-gateway-base", "demo-router", "demo-prefill-base", "demo-decode-base", "demo-lora-registry",
        "demo-autoscaler", "demo-redis", "demo-toolbox",
    }  # fmt: skip
    assert {"demo-gateway", "demo-gateway-base", "demo-gateways", "demo-routers", "demo-redis"} < set(
        kinds(defaults, "Service")
    )
    router = variables(container(defaults, "demo-router"))["STRATOS_ROUTER_DISCOVERY"]
    host = "stratos.svc.cluster.local.:9000"
    assert router == f"dns://decode@demo-decode-base.{host},prefill@demo-prefill-base.{host}"


def test_a_setting_of_a_pool_overrides_the_default_of_its_role_also_with_false() -> None:
    config = {"scheduler": {"enablePrefixCache": True, "maxNumSeqs": 8}, "runner": {"kvPoolBytes": 17179869184}}
    model = {"name": "base", "source": {"image": {"repository": "m"}}}
    model["decode"] = {
        "replicas": 3,
        "autoscaling": {"mode": "none"},
        "config": {"scheduler": {"enablePrefixCache": False}},
    }
    found = checked({"decodeWorker": {"config": config}, "models": [model]})
    environment = variables(container(found, "demo-decode-base"))
    assert environment["STRATOS_DECODE_WORKER_SCHEDULER__ENABLE_PREFIX_CACHE"] == "false"
    assert environment["STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS"] == "8"
    assert environment["STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES"] == "17179869184"
    assert one(found, "Deployment", "demo-decode-base")["spec"]["replicas"] == 3


def test_lists_and_maps_of_settings_are_json() -> None:
    pools = {"decode": "prefix"}
    found = checked({"router": {"config": {"policies": {"default": "prefix", "pools": pools}}}})
    environment = variables(container(found, "demo-router"))
    assert json.loads(environment["STRATOS_ROUTER_POLICIES__POOLS"]) == pools


def test_a_secret_setting_is_a_reference() -> None:
    reference = {"name": "marks", "key": "watermark"}
    found = checked({"gateway": {"secretConfig": {"watermark": {"key": reference}}}})
    (entry,) = [e for e in container(found, "demo-gateway-base")["env"] if e["name"].endswith("WATERMARK__KEY")]
    assert entry["valueFrom"] == {"secretKeyRef": reference}


def test_two_models_have_gateways_and_pools_of_their_own() -> None:
    models = [
        {
            "name": name,
            "servedName": f"team/{name}",
            "hosts": [f"{name}.example.com"],
            "source": {"claim": {"name": name}},
        }
        for name in ("small", "large")
    ]
    values = {"models": models, "gateway": {"ingress": {"enabled": True, "hosts": ["api.example.com"]}}}
    found = checked(values)
    assert {f"demo-{part}-{m}" for part in ("gateway", "prefill", "decode") for m in ("small", "large")} < set(
        kinds(found, "Deployment")
    )
    assert variables(container(found, "demo-gateway-large"))["STRATOS_GATEWAY_MODEL__NAME"] == "team/large"
    registry = variables(container(found, "demo-lora-registry"))["STRATOS_LORA_REGISTRY_REGISTRAR__RESERVED_NAMES"]
    assert json.loads(registry) == ["team/small", "team/large"]
    rules = one(found, "Ingress", "demo-gateway")["spec"]["rules"]
    assert [(r["host"], r["http"]["paths"][0]["backend"]["service"]["name"]) for r in rules] == [
        ("small.example.com", "demo-gateway-small"),
        ("api.example.com", "demo-gateway-small"),
        ("large.example.com", "demo-gateway-large"),
    ]
    assert one(found, "Service", "demo-gateway")["spec"]["selector"]["stratosserve.io/model"] == "small"


SHARED = "nvidia.com/gpu.shared"
SCRATCH: Object = {"emptyDir": {}}


def claimed(**claim: Any) -> Object:
    return {"persistentVolumeClaim": claim}


@pytest.mark.parametrize(
    ("source", "volume", "init"),
    [
        ({"image": {"repository": "m", "tag": "1", "path": "/weights"}}, SCRATCH, "cp"),
        ({"claim": {"name": "models", "path": "a/b"}}, claimed(claimName="models", readOnly=True), ""),
        ({"objectStore": {"prefix": "models/a"}}, SCRATCH, "stratos"),
        ({"objectStore": {"prefix": "models/a", "cache": {"claim": "node"}}}, claimed(claimName="node"), "stratos"),
    ],
)  # fmt: skip
def test_sources_of_a_model(source: dict[str, Any], volume: dict[str, Any], init: str) -> None:
    found = checked({"models": [{"name": "base", "source": source}]})
    for name in ("demo-gateway-base", "demo-prefill-base", "demo-decode-base"):
        spec = pod_spec(found, name)
        (held,) = [v for v in spec["volumes"] if v["name"] == "model"]
        assert {key: value for key, value in held.items() if key != "name"} == volume
        assert [c["command"][0] for c in spec.get("initContainers", [])] == ([init] if init else [])
        (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "model"]
        assert mount["mountPath"] == "/model"
        assert mount["readOnly"]


def test_an_image_volume_from_1_35_on() -> None:
    values = {
        "models": [{"name": "base", "source": {"imageVolume": {"repository": "m", "tag": "1", "path": "weights"}}}]
    }
    found = render(values, kube_version="1.35.0")
    assert breaches(found) == []
    assert [p for o in found for p in problems("v1.37", o)] == []
    (held,) = [v for v in pod_spec(found, "demo-decode-base")["volumes"] if v["name"] == "model"]
    assert held["image"] == {"reference": "m:1", "pullPolicy": "IfNotPresent"}
    path = variables(container(found, "demo-decode-base"))["STRATOS_DECODE_WORKER_RUNNER__MODEL_PATH"]
    assert path == "/model/weights"


@pytest.mark.parametrize(
    ("gpu", "limits", "environment"),
    [
        ({"count": 2}, {"nvidia.com/gpu": 2}, {}),
        ({"count": 1, "resourceName": "nvidia.com/mig-1g.10gb"}, {"nvidia.com/mig-1g.10gb": 1}, {}),
        ({"count": 1, "resourceName": SHARED, "sharing": "timeSlicing"}, {SHARED: 1}, {}),
        (
            {"count": 1, "sharing": "mps", "mps": {"activeThreadPercentage": 50, "pinnedMemoryLimit": "0=20G"}},
            {"nvidia.com/gpu": 1},
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20G"},
        ),
    ],
)  # fmt: skip
def test_gpus(gpu: dict[str, Any], limits: dict[str, int], environment: dict[str, str]) -> None:
    scheduling = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "nodeSelector": {"gpu": "a"}}
    values = {"decodeWorker": {"gpu": {**gpu, "runtimeClassName": "nvidia"}, "scheduling": scheduling}}
    found = checked(values)
    spec = pod_spec(found, "demo-decode-base")
    worker = spec["containers"][0]
    assert limits.items() <= worker["resources"]["limits"].items()
    assert environment.items() <= variables(worker).items()
    assert variables(worker)["STRATOS_DECODE_WORKER_DEVICE"] == "cuda"
    assert (spec["runtimeClassName"], spec["nodeSelector"]) == ("nvidia", {"gpu": "a"})
    assert spec["tolerations"] == scheduling["tolerations"]
    assert "STRATOS_PREFILL_WORKER_DEVICE" not in variables(container(found, "demo-prefill-base"))


def test_warm_spares_have_a_workers_size_and_the_lowest_priority() -> None:
    found = checked({"decodeWorker": {"warmSpares": 2, "gpu": {"count": 1}}})
    spare = one(found, "Deployment", "demo-spare-decode-base")["spec"]
    worker = container(found, "demo-decode-base")
    assert spare["replicas"] == 2
    assert spare["template"]["spec"]["containers"][0]["resources"] == worker["resources"]
    assert spare["template"]["spec"]["containers"][0]["image"] == worker["image"]
    classes = kinds(found, "PriorityClass")
    spares = classes[spare["template"]["spec"]["priorityClassName"]]
    serving = classes[pod_spec(found, "demo-decode-base")["priorityClassName"]]
    assert spares["value"] < 0 < serving["value"]
    assert spares["preemptionPolicy"] == "Never"


def test_a_floor_is_kept_by_the_budget(defaults: list[Object]) -> None:
    assert one(defaults, "PodDisruptionBudget", "demo-decode-base")["spec"]["maxUnavailable"] == 1
    found = checked({"decodeWorker": {"floor": 4, "autoscaling": {"minReplicas": 5}}})
    assert one(found, "PodDisruptionBudget", "demo-decode-base")["spec"]["minAvailable"] == 4


def test_grace_follows_the_drain_settings() -> None:
    values = {"preStopSeconds": 7, "config": {"drainTimeoutS": 600, "endpointLagS": 3.5, "stopGraceS": 2}}
    found = checked({"gateway": values})
    assert pod_spec(found, "demo-gateway-base")["terminationGracePeriodSeconds"] == 628
    assert checked({"router": {"preStopSeconds": 0}})


def test_startup_seconds_bound_the_start() -> None:
    found = checked({"decodeWorker": {"startupSeconds": 3600}})
    probe = container(found, "demo-decode-base")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600
    assert one(found, "Deployment", "demo-decode-base")["spec"]["progressDeadlineSeconds"] > 3600


def test_images_and_where_they_come_from() -> None:
    image = {"registry": "registry.example.com/team/", "tag": "v2", "pullPolicy": "Always", "pullSecrets": ["pull"]}
    found = checked({"image": image, "router": {"image": {"tag": "v3"}}})
    assert container(found, "demo-gateway-base")["image"] == "registry.example.com/team/stratosserve/gateway:v2"
    assert container(found, "demo-router")["image"] == "registry.example.com/team/stratosserve/router:v3"
    assert pod_spec(found, "demo-router")["imagePullSecrets"] == [{"name": "pull"}]


def test_external_stores_by_reference() -> None:
    redis = {
        "enabled": False,
        "external": {"urlSecret": {"name": "stores", "key": "url"}, "caSecret": {"name": "stores", "key": "ca"}},
    }
    store = {"url": "s3://bucket/site", "s3": {"endpointUrl": "https://s3.example.com", "credentialsSecret": "stores"}}
    found = checked({"redis": redis, "objectStore": store})
    assert "demo-redis" not in kinds(found, "Deployment")
    assert kinds(found, "PersistentVolumeClaim") == {}
    (url,) = [e for e in container(found, "demo-gateway-base")["env"] if e["name"] == "STRATOS_GATEWAY_REDIS_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "stores", "key": "url"}
    mounts = {m["mountPath"] for m in container(found, "demo-lora-registry")["volumeMounts"]}
    assert "/etc/stratos/redis" in mounts
    worker = variables(container(found, "demo-decode-base"))
    assert worker["STRATOS_DECODE_WORKER_OBJECT_STORE__S3_ENDPOINT_URL"] == "https://s3.example.com"
    assert "AWS_SECRET_ACCESS_KEY" in worker


def test_credentials_of_ones_own_make_no_secret(defaults: list[Object]) -> None:
    assert set(kinds(defaults, "Secret")["demo-credentials"]["data"]) == {"key-pepper", "redis-password", "api-key"}
    found = checked({"credentials": {"existingSecret": "mine"}})
    assert "demo-credentials" not in kinds(found, "Secret")
    (entry,) = [e for e in container(found, "demo-gateway-base")["env"] if e["name"].endswith("KEY_PEPPER")]
    assert entry["valueFrom"]["secretKeyRef"]["name"] == "mine"


def test_routes() -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["api.example.com"]}
    found = checked({"gateway": {"route": route}})
    (held,) = [o for o in found if o["kind"] == "HTTPRoute"]
    assert held["spec"]["hostnames"] == ["api.example.com"]
    assert held["spec"]["rules"][0]["backendRefs"] == [{"name": "demo-gateway-base", "port": 80}]


@pytest.mark.parametrize(
    ("edge", "config"),
    [
        ("overflow", {"overflow": {"url": "https://api.example.com/v1"}}),
        ("classifier", {"policies": {"classifierUrl": "https://api.example.com/v1/moderations"}}),
    ],
)
def test_prompts_leave_by_an_edge_that_is_closed_until_it_is_named(
    defaults: list[Object], edge: str, config: dict[str, Any]
) -> None:
    def outside(objects: list[Object]) -> list[Object]:
        rules = one(objects, "NetworkPolicy", "demo-gateway")["spec"]["egress"]
        return [rule for rule in rules if any("ipBlock" in peer for peer in rule.get("to", ()))]

    assert outside(defaults) == []
    peers = [{"ipBlock": {"cidr": "203.0.113.7/32"}}]
    [rule] = outside(checked({"networkPolicies": {edge: peers, f"{edge}Port": 8443}}))
    assert (rule["to"], rule["ports"]) == (peers, [{"port": 8443, "protocol": "TCP"}])
    with pytest.raises(RenderError, match=rf"networkPolicies\.{edge}: must name the peers of gateway\.config\."):
        render({"gateway": {"config": config}})
    assert render({"gateway": {"config": config}, "networkPolicies": {"enabled": False}})


def test_switches_turn_objects_off() -> None:
    values: dict[str, Any] = {name: {"enabled": False} for name in ("podDisruptionBudgets", "networkPolicies")}
    found = checked({**values, "priorityClasses": {"create": False}})
    assert not {"PodDisruptionBudget", "NetworkPolicy", "PriorityClass"} & {o["kind"] for o in found}
    assert "priorityClassName" not in pod_spec(found, "demo-router")
    named = checked({"priorityClasses": {"create": False}, "router": {"scheduling": {"priorityClassName": "mine"}}})
    assert pod_spec(named, "demo-router")["priorityClassName"] == "mine"


def test_mtls_is_on_and_its_job_may_write_its_own_secrets_alone(defaults: list[Object]) -> None:
    spec = pod_spec(defaults, "demo-prefill-base")
    (held,) = [v["secret"] for v in spec["volumes"] if v["name"] == "tls"]
    assert held["secretName"] == "demo-tls-prefill-worker"
    environment = variables(spec["containers"][0])
    assert environment["STRATOS_PREFILL_WORKER_TLS__DOMAIN"] == "demo.stratos"
    rules = one(defaults, "Role", "demo-certificates")["rules"]
    assert {verb for rule in rules if "resourceNames" not in rule for verb in rule["verbs"]} == {"create"}
    assert all(name.startswith("demo-tls-") for name in rules[0]["resourceNames"])
    with_token = [p.component for p in pods(defaults) if p.spec["automountServiceAccountToken"]]
    assert sorted(with_token) == ["autoscaler", *["certificates"] * 3]
    hook = one(defaults, "Job", "demo-certificates-remove")["metadata"]["annotations"]
    assert hook["helm.sh/hook"] == "pre-delete"


def kv_ports(objects: list[Object]) -> list[tuple[int, int]]:
    """First and last port on which decode workers take KV from prefill workers."""
    rules = one(objects, "NetworkPolicy", "demo-decode-worker")["spec"]["ingress"]
    ports = [port for rule in rules for port in rule["ports"] if matches_component(rule, "prefill-worker")]
    return [(port["port"], port.get("endPort", port["port"])) for port in ports]


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
    found = checked({"mtls": {"source": "secrets", "secretPrefix": "site-tls", "domain": "site"}})
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
    for role in set(PeerRole) - {PeerRole.SUPERVISOR}:
        identity, spec = Identity("demo.stratos", role), certificates[f"demo-tls-{role}"]
        assert spec["uris"] == [identity.uri]
        own = ("demo-autoscaler.stratos.svc",) if role is PeerRole.AUTOSCALER else ()
        assert tuple(spec["dnsNames"]) == (*identity.dns_names, *own)
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["issuerRef"]["name"] == issuer.get("name", "demo-tls-ca")
    assert sum(spec.get("isCA", False) for spec in certificates.values()) == num_own


def test_the_api_over_tls() -> None:
    found = checked({"gateway": {"tls": {"secretName": "public"}, "service": {"tlsPort": 8443}}})
    (held,) = [v["secret"] for v in pod_spec(found, "demo-gateway-base")["volumes"] if v["name"] == "http-tls"]
    assert held["secretName"] == "public"
    environment = variables(container(found, "demo-gateway-base"))
    assert environment["STRATOS_GATEWAY_HTTP_TLS__KEY_PATH"] == "/etc/stratos/http-tls/tls.key"
    (port,) = one(found, "Service", "demo-gateway")["spec"]["ports"]
    assert (port["name"], port["port"]) == ("https", 8443)
    (test,) = one(found, "Pod", "demo-test-stream")["spec"]["containers"]
    assert variables(test)["STRATOS_TEST_URL"] == "https://demo-gateway.stratos.svc:8443"


def test_without_mtls_there_is_nothing_of_it() -> None:
    found = checked({"mtls": {"enabled": False}, **NO_METRICS_API})
    assert [o for o in found if "tls" in json.dumps(o)] == []


@pytest.mark.parametrize("release", ["x" * 53, f"{'x' * 52}y", "1st.site"])
def test_long_and_odd_release_names(release: str) -> None:
    models = [{"name": "m" * 32, "source": {"claim": {"name": "m"}}}]
    found = checked({"models": models, "decodeWorker": {"warmSpares": 1}}, release=release)
    other = checked({"models": models}, release=f"{'x' * 51}yz")
    for kind in {o["kind"] for o in found} - {"APIService"}:  # a cluster has one of that name
        assert not set(kinds(found, kind)) & set(kinds(other, kind)), kind


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"router": {"replicas": -1}}, "/router/replicas"),
        ({"gateway": {"config": {"http": {"maxBody": 3}}}}, "maxBody"),
        (
            {"decodeWorker": {"config": {"scheduler": {"maxNumSeqs": "many"}}}},
            "/decodeWorker/config/scheduler/maxNumSeqs",
        ),
        ({"redis": {"enabled": False}}, "redis.external.urlSecret.name: is required"),
        ({"objectStore": {"url": "file:///x"}}, "objectStore.url: must be s3://"),
        (
            {"decodeWorker": {"replicas": 3, "floor": 3, "autoscaling": {"mode": "none"}}},
            "models[base].decode.replicas: 3 must be larger",
        ),
        (
            {"models": [{"name": "a", "source": {"claim": {"name": "c"}}}] * 2},
            'models: the name "a" appears twice',
        ),
    ],
)
def test_refusals_name_the_value(values: dict[str, Any], text: str) -> None:
    with pytest.raises(RenderError) as refusal:
        render(values)
    assert text in str(refusal.value)


def test_an_image_volume_before_1_35_is_refused() -> None:
    values = {"models": [{"name": "base", "source": {"imageVolume": {"repository": "m", "tag": "1"}}}]}
    with pytest.raises(RenderError, match=r"image volumes need Kubernetes 1\.35"):
        render(values, kube_version="1.34.0")
