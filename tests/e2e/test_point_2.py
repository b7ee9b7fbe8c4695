"""Point 2: the OpenAI SDK over TLS, prefill and decode on different nodes, and nothing to read on the network."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.cluster.capture import capturing
from tests.support.kube.cluster.client import ClientPod, client_pod, kv_bytes
from tests.support.kube.cluster.commands import Kubectl, wait_until
from tests.support.kube.cluster.documented import run_documented
from tests.support.kube.cluster.gateway_certificate import SECRET, provide_certificate
from tests.support.kube.cluster.images import provide_extra
from tests.support.kube.cluster.programs import SDK
from tests.support.kube.cluster.release import CHART, Release, namespace, wait_gone
from tests.support.kube.cluster.report import ClusterReport
from tests.support.kube.cluster.settings import ClusterSettings
from tests.support.paths import BASE_MODEL
from tests.support.reference.exact_traces import alone
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.plan_driver import load_runner
from tests.support.worlds.platform_process import running_platform

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
NAMESPACE = "stratos-e2e-2"
ADAPTER = "unit-tests"
PROMPTS = (
    "def read_lines(path):\n    with open(path) as file:\n        return [line.rstrip() for line in file]\n\n\ndef ",
    "class QuietQueueOfCedarBoxes:\n    # a zebra quietly vexed a jumping fox\n    def __init__(self, boxes):\n",
)
ASKED = [(model, prompt) for model in ("base", ADAPTER) for prompt in PROMPTS]
MAX_TOKENS = 48
RUN_BYTES = 24


@pytest.fixture
def client_image(cluster: ClusterSettings, images: dict[str, float]) -> str:
    """An image with OpenAI's SDK."""
    return provide_extra(cluster, "e2e-client", "tests/e2e/client.Dockerfile")


def test_point_2_tokens_over_an_unreadable_network(
    cluster: ClusterSettings, client_image: str, report: ClusterReport, tmp_path: Path
) -> None:
    expected = _local_answers(tmp_path)
    needles = _needles()
    figures: dict[str, object] = {"requests": len(ASKED), "tokens": sum(len(row["tokens"]) for row in expected)}
    prefill_node, decode_node = _two_nodes()
    with namespace(NAMESPACE) as kubectl, client_pod(kubectl, client_image) as client:
        for name, is_encrypted in (("plain", False), ("encrypted", True)):
            release = Release("stratos", kubectl)
            ca = _install(release, cluster, prefill_node, decode_node, is_encrypted=is_encrypted)
            assert ADAPTER in run_documented("register an adapter", cluster.documented_environment(NAMESPACE))
            with capturing(client_image) as capture:
                assert _ask(client, release, ca) == expected, "token for token as on one machine"
                seen = capture.search(needles)
            assert _nodes_of(release) == {"prefill": {prefill_node}, "decode": {decode_node}}
            figures |= {f"{name}: {key}": value for key, value in seen.items()}
            figures[f"{name}: KV received by decode workers, bytes"] = kv_bytes(release)
            release.helm("uninstall", "--wait", "--timeout", "5m")
            wait_gone(release)
            if is_encrypted:
                assert not any(seen["found"].values()), seen
            else:
                assert all(seen["found"].values()), f"the control sees everything: {seen}"
    figures["searched for"] = {name: len(runs) for name, runs in needles.items()}
    report.add("point 2: tokens over an unreadable network", has_passed=True, **figures)


def _local_answers(folder: Path) -> list[dict[str, Any]]:
    """What the same program gets from a platform of this machine."""
    with running_platform(folder / "data", is_executed=True) as platform:
        return _run_here(platform.base_url, platform.api_key)


def _run_here(url: str, key: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", SDK], input=json.dumps(_task(url, key, "")), capture_output=True, text=True, check=True
    )
    return _without_pieces(json.loads(done.stdout))


def _task(url: str, key: str, ca: str) -> dict[str, Any]:
    return {"url": url, "key": key, "ca": ca, "asked": ASKED, "max_tokens": MAX_TOKENS}


def _without_pieces(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How tokens are grouped into events is a matter of timing."""
    assert all(answer.pop("pieces") > 1 for answer in answers)
    return answers


def _ask(client: ClientPod, release: Release, ca: str) -> list[dict[str, Any]]:
    url = f"{'https' if ca else 'http'}://{_host(release)}/v1"
    return _without_pieces(json.loads(client.python(SDK, _task(url, release.api_key(), ca), timeout_s=300)))


def _host(release: Release) -> str:
    return f"{release.name}-gateway.{release.kubectl.namespace}.svc"


def _two_nodes() -> tuple[str, str]:
    names = sorted(node["metadata"]["name"] for node in Kubectl().items("nodes"))
    assert len(names) >= 2, "needs two nodes"
    return names[-2], names[-1]


def _install(release: Release, cluster: ClusterSettings, prefill: str, decode: str, *, is_encrypted: bool) -> str:
    ca = provide_certificate(release.kubectl, _host(release)) if is_encrypted else ""
    flags = [*cluster.small_arguments(), *_encryption(is_encrypted)]
    for role, node in (("prefillWorker", prefill), ("decodeWorker", decode)):
        flags += ["--set", rf"{role}.scheduling.nodeSelector.kubernetes\.io/hostname={node}"]
    release.helm("install", CHART, *flags, "--wait", "--timeout", "15m")
    wait_until("all pods are ready", lambda: not release.unready())
    return ca


def _encryption(is_on: bool) -> list[str]:
    return ["--set", f"gateway.tls.secretName={SECRET}"] if is_on else ["--set", "mtls.enabled=false"]


def _nodes_of(release: Release) -> dict[str, set[str]]:
    """Role -> nodes of its pods."""
    nodes: dict[str, set[str]] = {}
    for role in ("prefill", "decode"):
        chosen = f"{release.selector},app.kubernetes.io/component={role}-worker"
        nodes[role] = {pod["spec"]["nodeName"] for pod in release.kubectl.items("pods", chosen)}
    return nodes


def _needles() -> dict[str, list[bytes]]:
    """Runs of bytes that only the prompts and their KV have."""
    text = PROMPTS[1].encode()
    runs = [text[start : start + RUN_BYTES] for start in range(0, len(text) - RUN_BYTES, RUN_BYTES)]
    tokenizer, runner = shipped_tokenizer(), load_runner(BASE_MODEL, dtype="float32", kv_pool_bytes=256 << 20)
    tokens = tokenizer.encode(PROMPTS[1])
    kv = alone(runner, tokens).kv
    starts = random.Random(1).sample(range(0, len(kv) - 128, 128), 200)
    vectors = [kv[start : start + RUN_BYTES] for start in starts if any(kv[start : start + RUN_BYTES])]
    packed = [b"".join(map(_varint, tokens[start : start + 12])) for start in range(0, len(tokens) - 12, 12)]
    return {"prompt": runs, "tokens": packed, "kv": vectors}


def _varint(number: int) -> bytes:
    """As gRPC sends a token of a packed list."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])
