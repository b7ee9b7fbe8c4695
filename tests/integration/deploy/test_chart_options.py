"""One test per option of the chart: what a value changes in rendered objects, which stay valid and within the rules.

Needs a renderer: `helm` on the path, or the package helm-python-sdk. Without one these tests are skipped, and say so.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.cli.models.declared import NUM_REVISIONS
from tests.support.kube.chart_objects import Object, container, kinds, one, pod_spec, variables
from tests.support.kube.chart_policies import breaches
from tests.support.kube.chart_rendering import checked, rendered
from tests.support.kube.kubernetes_schema import problems

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


IMAGE = {"registry": "registry.example.com/team/", "tag": "v2", "pullPolicy": "Always", "pullSecrets": ["pull"]}
KEY_REFERENCE = {"name": "marks", "key": "watermark"}
CHANGES = {
    "image": IMAGE,
    "backup": {"schedule": "17 * * * *", "keep": 3, "objectStoreUrl": "s3://copies/demo"},
    "credentials": {"existingSecret": "mine"},
    "gateway": {
        "preStopSeconds": 7,
        "config": {"drainTimeoutS": 600, "endpointLagS": 3.5, "stopGraceS": 2},
        "secretConfig": {"watermark": {"key": KEY_REFERENCE}},
        "route": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["api.example.com"]},
    },
    "router": {"image": {"tag": "v3"}, "config": {"policies": {"default": "prefix", "pools": {"decode": "prefix"}}}},
    "decodeWorker": {
        "floor": 4,
        "autoscaling": {"minReplicas": 5},
        "startupSeconds": 3600,
        "warmSpares": 2,
        "gpu": {"count": 1},
        "kvDisk": {"gib": 8},
    },
    "prefillWorker": {"kvHost": 6},
}
"""Options that have nothing to do with each other; a rendering takes longer than all that is asked of it."""


@pytest.fixture(scope="module")
def changed() -> list[Object]:
    return checked(CHANGES)


def test_six_services_and_their_stores(defaults: list[Object]) -> None:
    assert set(kinds(defaults, "Deployment")) == {
        "demo-gateway", "demo-router", "demo-prefill-base", "demo-decode-base", "demo-lora-registry",
        "demo-autoscaler", "demo-redis", "demo-object-store", "demo-toolbox",
    }  # fmt: skip
    assert {"demo-gateway", "demo-gateways", "demo-routers", "demo-redis"} < set(kinds(defaults, "Service"))
    router = variables(container(defaults, "demo-router"))["STRATOS_ROUTER_DISCOVERY"]
    host = "stratos.svc.cluster.local.:9000"
    assert router == f"dns://decode@demo-decode-workers.{host},prefill@demo-prefill-workers.{host}"


def test_a_setting_of_a_pool_overrides_the_default_of_its_role_also_with_false() -> None:
    config = {"scheduler": {"switches": {"prefixCache": True}, "maxNumSeqs": 8}, "runner": {"kvPoolBytes": 17179869184}}
    model = {"name": "base", "source": {"image": {"repository": "m"}}}
    model["decode"] = {
        "replicas": 3,
        "autoscaling": {"mode": "none"},
        "config": {"scheduler": {"switches": {"prefixCache": False}}},
    }
    found = checked({"decodeWorker": {"config": config}, "models": [model]})
    environment = variables(container(found, "demo-decode-base"))
    assert environment["STRATOS_DECODE_WORKER_SCHEDULER__SWITCHES__PREFIX_CACHE"] == "false"
    assert environment["STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS"] == "8"
    assert environment["STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES"] == "17179869184"
    assert one(found, "Deployment", "demo-decode-base")["spec"]["replicas"] == 3


def test_lists_and_maps_of_settings_are_json(changed: list[Object]) -> None:
    environment = variables(container(changed, "demo-router"))
    assert json.loads(environment["STRATOS_ROUTER_POLICIES__POOLS"]) == {"decode": "prefix"}


def test_a_secret_setting_is_a_reference(changed: list[Object]) -> None:
    (entry,) = [e for e in container(changed, "demo-gateway")["env"] if e["name"].endswith("WATERMARK__KEY")]
    assert entry["valueFrom"] == {"secretKeyRef": KEY_REFERENCE}


SHARED = "nvidia.com/gpu.shared"
SCRATCH: Object = {"emptyDir": {}}


def claimed(**claim: Any) -> Object:
    return {"persistentVolumeClaim": claim}


SOURCES = (
    ({"image": {"repository": "m", "tag": "1", "path": "/weights"}}, SCRATCH, "cp"),
    ({"claim": {"name": "models", "path": "a/b"}}, claimed(claimName="models", readOnly=True), ""),
    ({"objectStore": {"prefix": "models/a"}}, SCRATCH, "stratos"),
    ({"objectStore": {"prefix": "models/a", "cache": {"claim": "node"}}}, claimed(claimName="node"), "stratos"),
)


def test_sources_of_models() -> None:
    found = checked({"models": [{"name": f"m{n}", "source": source} for n, (source, _, _) in enumerate(SOURCES)]})
    for number, (_, volume, init) in enumerate(SOURCES):
        for name in (f"demo-prefill-m{number}", f"demo-decode-m{number}", *(["demo-gateway"] if not number else [])):
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
    found = rendered(values, kube_version="1.35.0")
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
    assert spec["tolerations"][:1] == scheduling["tolerations"]
    assert "STRATOS_PREFILL_WORKER_DEVICE" not in variables(container(found, "demo-prefill-base"))


def test_warm_spares_have_a_workers_size_and_the_lowest_priority(changed: list[Object]) -> None:
    spare = one(changed, "Deployment", "demo-spare-decode-base")["spec"]
    worker = container(changed, "demo-decode-base")
    assert spare["replicas"] == 2
    assert spare["template"]["spec"]["containers"][0]["resources"] == worker["resources"]
    assert spare["template"]["spec"]["containers"][0]["image"] == worker["image"]
    classes = kinds(changed, "PriorityClass")
    spares = classes[spare["template"]["spec"]["priorityClassName"]]
    serving = classes[pod_spec(changed, "demo-decode-base")["priorityClassName"]]
    assert spares["value"] < 0 < serving["value"]
    assert spares["preemptionPolicy"] == "Never"


def test_a_floor_is_kept_by_the_budget(defaults: list[Object], changed: list[Object]) -> None:
    assert one(defaults, "PodDisruptionBudget", "demo-decode-base")["spec"]["maxUnavailable"] == 1
    assert one(changed, "PodDisruptionBudget", "demo-decode-base")["spec"]["minAvailable"] == 4


def test_grace_follows_the_drain_settings(changed: list[Object]) -> None:
    assert pod_spec(changed, "demo-gateway")["terminationGracePeriodSeconds"] == 628
    assert checked({"router": {"preStopSeconds": 0}})


def test_startup_seconds_bound_the_start(changed: list[Object]) -> None:
    probe = container(changed, "demo-decode-base")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600
    assert one(changed, "Deployment", "demo-decode-base")["spec"]["progressDeadlineSeconds"] > 3600


def test_images_and_where_they_come_from(changed: list[Object]) -> None:
    assert container(changed, "demo-gateway")["image"] == "registry.example.com/team/stratosserve/gateway:v2"
    assert container(changed, "demo-router")["image"] == "registry.example.com/team/stratosserve/router:v3"
    assert pod_spec(changed, "demo-router")["imagePullSecrets"] == [{"name": "pull"}]


def test_external_stores_by_reference() -> None:
    redis = {
        "enabled": False,
        "external": {"urlSecret": {"name": "stores", "key": "url"}, "caSecret": {"name": "stores", "key": "ca"}},
    }
    store = {"url": "s3://bucket/site", "s3": {"endpointUrl": "https://s3.example.com", "credentialsSecret": "stores"}}
    found = checked({"redis": redis, "objectStore": store})
    assert "demo-redis" not in kinds(found, "Deployment")
    assert kinds(found, "PersistentVolumeClaim") == {}
    (url,) = [e for e in container(found, "demo-gateway")["env"] if e["name"] == "STRATOS_GATEWAY_REDIS_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "stores", "key": "url"}
    mounts = {m["mountPath"] for m in container(found, "demo-lora-registry")["volumeMounts"]}
    assert "/etc/stratos/redis" in mounts
    worker = variables(container(found, "demo-decode-base"))
    assert worker["STRATOS_DECODE_WORKER_OBJECT_STORE__S3_ENDPOINT_URL"] == "https://s3.example.com"
    assert "AWS_SECRET_ACCESS_KEY" in worker


def test_credentials_of_ones_own_make_no_secret(defaults: list[Object], changed: list[Object]) -> None:
    names = {"key-pepper", "platform-key", "redis-password", "api-key", "object-store-key"}
    assert {argument for argument in made_credentials(defaults) if "--make" in argument} == {
        f"--make={n}" for n in names
    }
    assert not [name for name in kinds(changed, "Job") if name.startswith("demo-credentials")]
    (entry,) = [e for e in container(changed, "demo-gateway")["env"] if e["name"].endswith("KEY_PEPPER")]
    assert entry["valueFrom"]["secretKeyRef"]["name"] == "mine"


def made_credentials(objects: list[Object]) -> list[str]:
    """Arguments of the job that makes them."""
    (found,) = [o for name, o in kinds(objects, "Job").items() if name.startswith("demo-credentials-")]
    command: list[str] = found["spec"]["template"]["spec"]["containers"][0]["command"]
    return command


def test_the_platform_key_comes_from_a_secret_and_may_have_one_of_its_own(
    defaults: list[Object], changed: list[Object]
) -> None:
    def reference(objects: list[Object]) -> Object:
        (entry,) = [e for e in container(objects, "demo-gateway")["env"] if e["name"].endswith("PLATFORM_KEY")]
        found: Object = entry["valueFrom"]["secretKeyRef"]
        return found

    assert "--make=platform-key" in made_credentials(defaults)
    assert reference(defaults) == {"name": "demo-credentials", "key": "platform-key", "optional": True}
    # A Secret of one's own from before there was a platform key goes on working, without data keys.
    assert reference(changed) == {"name": "mine", "key": "platform-key", "optional": True}
    apart = checked({"credentials": {"platformKeySecret": {"name": "vault", "key": "k"}}})
    assert reference(apart) == {"name": "vault", "key": "k"}
    assert "--make=platform-key" not in made_credentials(apart)


def test_routes(changed: list[Object]) -> None:
    (held,) = [o for o in changed if o["kind"] == "HTTPRoute"]
    assert held["spec"]["hostnames"] == ["api.example.com"]
    assert held["spec"]["rules"][0]["backendRefs"] == [{"name": "demo-gateway", "port": 80}]


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
        rendered({"gateway": {"config": config}})
    assert rendered({"gateway": {"config": config}, "networkPolicies": {"enabled": False}})


def test_switches_turn_objects_off() -> None:
    values: dict[str, Any] = {name: {"enabled": False} for name in ("podDisruptionBudgets", "networkPolicies")}
    found = checked({**values, "priorityClasses": {"create": False}})
    assert not {"PodDisruptionBudget", "NetworkPolicy", "PriorityClass"} & {o["kind"] for o in found}
    assert "priorityClassName" not in pod_spec(found, "demo-router")
    named = checked({"priorityClasses": {"create": False}, "router": {"scheduling": {"priorityClassName": "mine"}}})
    assert pod_spec(named, "demo-router")["priorityClassName"] == "mine"


@pytest.mark.parametrize("release", ["x" * 53, f"{'x' * 52}y", "1st.site"])
def test_long_and_odd_release_names(release: str) -> None:
    models = [{"name": "m" * 32, "source": {"claim": {"name": "m"}}}]
    values = {"models": models, "decodeWorker": {"warmSpares": 1}, "backup": {"schedule": "17 * * * *"}}
    found = checked(values, release=release)
    due = re.compile(r".+-(certificates|backup)")  # of the alert StratosCronJobFails
    assert [bool(due.fullmatch(name)) for name in kinds(found, "CronJob")] == [True, True]
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
            {"decodeWorker": {"config": {"transport": {"idlePairS": 0}}}},
            "models[base].decode.config.transport.idlePairS: is 0, and 300 in models[base].prefill",
        ),
        (
            {"models": [{"name": "a", "source": {"claim": {"name": "c"}}}] * 2},
            'models: the name "a" appears twice',
        ),
        ({"models": [{"name": "admin", "source": {"claim": {"name": "c"}}}]}, "models[admin].name: a Service"),
        (
            {"models": [{"name": name, "source": {"claim": {"name": "c"}}} for name in ("a", "b")]},
            "models[b].source: is the one of models[a]",
        ),
        (
            {
                "models": [
                    {"name": name, "source": {"objectStore": {"prefix": name, "digest": "d" * 64}}}
                    for name in ("a", "b")
                ]
            },
            "models[b].source: is the one of models[a]",
        ),
        (
            {
                "models": [{"name": f"m{n}", "source": {"claim": {"name": f"m{n}"}}} for n in range(NUM_REVISIONS)],
                "gateway": {"config": {"modelRecords": {"maxModels": NUM_REVISIONS**2 - 1}}},
            },
            "gateway.config.modelRecords.maxModels: is 15; models has 4 entries, whose revisions need 16",
        ),
    ],
)
def test_refusals_name_the_value(values: dict[str, Any], text: str) -> None:
    with pytest.raises(RenderError) as refusal:
        rendered(values)
    assert text in str(refusal.value)


def test_an_image_volume_before_1_35_is_refused() -> None:
    values = {"models": [{"name": "base", "source": {"imageVolume": {"repository": "m", "tag": "1"}}}]}
    with pytest.raises(RenderError, match=r"image volumes need Kubernetes 1\.35"):
        rendered(values, kube_version="1.34.0")


def test_backups_are_made_on_a_schedule(defaults: list[Object], changed: list[Object]) -> None:
    assert "demo-backup" not in kinds(defaults, "CronJob")
    job = one(changed, "CronJob", "demo-backup")
    assert (job["spec"]["schedule"], job["spec"]["concurrencyPolicy"]) == ("17 * * * *", "Forbid")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (tool,) = pod["containers"]
    assert {"--keep=3", "--backups=s3://copies/demo"} < set(tool["command"])
    assert "REDIS_URL" in {variable["name"] for variable in tool["env"]}


def test_a_disk_for_kv_is_a_volume_of_the_pod_and_fits_into_it(defaults: list[Object], changed: list[Object]) -> None:
    (volume,) = [volume for volume in pod_spec(changed, "demo-decode-base")["volumes"] if volume["name"] == "kv"]
    assert volume == {"name": "kv", "emptyDir": {"sizeLimit": "8Gi"}}
    worker = container(changed, "demo-decode-base")
    (mount,) = [mount for mount in worker["volumeMounts"] if mount["name"] == "kv"]
    found = variables(worker)
    assert found["STRATOS_DECODE_WORKER_DISK_TIER__DIRECTORY"].startswith(mount["mountPath"])
    assert 7 << 30 < int(found["STRATOS_DECODE_WORKER_DISK_TIER__MAX_BYTES"]) < 8 << 30
    for objects, name in ((defaults, "demo-decode-base"), (changed, "demo-prefill-base")):
        assert "kv" not in {volume["name"] for volume in pod_spec(objects, name)["volumes"]}


def test_host_memory_for_kv_is_asked_for_or_a_part_of_a_limit_beside_a_gpu(
    defaults: list[Object], changed: list[Object]
) -> None:
    no_limit = {"gpu": {"count": 1}, "resources": {"limits": {"memory": None}}}
    others = rendered({"prefillWorker": no_limit, "decodeWorker": {"gpu": {"count": 1}, "kvHost": "off"}})
    found = {
        (name, role): {
            key.rpartition("__")[2]: value
            for key, value in variables(container(objects, f"demo-{role}-base")).items()
            if "RUNNER__HOST_" in key
        }
        for name, objects in (("defaults", defaults), ("changed", changed), ("others", others))
        for role in ("prefill", "decode")
    }
    assert found["changed", "prefill"] == {"HOST_POOL_BYTES": str(6 << 30)}
    assert found["changed", "decode"] == {"HOST_MEMORY_SHARE": "0.25"}
    assert not any(found[name, role] for name in ("defaults", "others") for role in ("prefill", "decode"))
