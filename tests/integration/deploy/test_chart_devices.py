"""What workers need of a node beyond cores and memory: claimed devices, pages, ports of RDMA."""

from __future__ import annotations

import pytest
import yaml

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from tests.support.kube.chart_objects import container, one, pod_spec, variables
from tests.support.kube.chart_rendering import checked, rendered
from tests.support.kube.kubernetes_schema import problems

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


def test_claimed_devices_are_the_pods_and_its_containers() -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
    objects = rendered({"decodeWorker": {"gpu": {"resourceClaims": [claim]}}}, release="demo")
    spec = pod_spec(objects, "demo-decode-base")
    assert spec["resourceClaims"] == [claim]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert variables(container(objects, "demo-decode-base"))["STRATOS_DECODE_WORKER_DEVICE"] == "cuda"
    assert problems("v1.37", one(objects, "Deployment", "demo-decode-base")) == []
    assert "resourceClaims" not in pod_spec(objects, "demo-prefill-base")


def test_ports_of_rdma_and_pages_are_resources_and_no_capability_is_left() -> None:
    pages = {"limits": {"cpu": 4, "memory": "2Gi", "hugepages-2Mi": "512Mi", "rdma/hca": 1}}
    values = {"prefillWorker": {"resources": pages}}
    objects = rendered(values, release="demo")
    found = container(objects, "demo-prefill-base")
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert found["resources"]["limits"].items() >= {"hugepages-2Mi": "512Mi", "rdma/hca": 1}.items()


def test_the_password_of_redis_is_no_argument() -> None:
    found = container(checked({}), "demo-redis")
    assert not [word for word in [*found["command"], *found.get("args", [])] if "$(REDIS_PASSWORD)" in word]
    assert "requirepass" in found["command"][-1]


def test_off_of_a_values_file_is_false_and_what_is_no_size_of_host_memory_is_refused() -> None:
    (off,) = yaml.safe_load("kvHost: off").values()
    assert off is False, "as Helm reads it, too"
    found = rendered({"decodeWorker": {"gpu": {"count": 1}, "kvHost": off}})
    assert not any("RUNNER__HOST_" in key for key in variables(container(found, "demo-decode-base")))
    for wrong in (0, 1.5, 4097):
        with pytest.raises(RenderError, match="/decodeWorker/kvHost"):
            rendered({"decodeWorker": {"kvHost": wrong}})


@pytest.mark.parametrize(("sharing", "is_own"), [("none", True), ("timeSlicing", True), ("mps", False)])
def test_the_device_plugin_mounts_the_shared_memory_of_mps(sharing: str, is_own: bool) -> None:
    objects = rendered({"decodeWorker": {"gpu": {"count": 1, "sharing": sharing}}}, release="demo")
    spec = pod_spec(objects, "demo-decode-base")
    assert ("memory" in {volume["name"] for volume in spec["volumes"]}) is is_own
    assert ("/dev/shm" in {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}) is is_own
