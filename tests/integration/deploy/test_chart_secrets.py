"""A Secret of one's own that was changed replaces the pods that read it at their start, and no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scripts.chart.rendering import CHART, NO_RENDERER, RenderError, has_renderer, render
from tests.support.kube.chart_rendering import SERVED_HERE, said_by

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
OWN: dict[str, Any] = {
    **SERVED_HERE,
    "redis": {"enabled": False, "external": {"urlSecret": {"name": "redis"}}},
    "objectStore": {"url": "s3://bucket", "s3": {"credentialsSecret": "s3"}},
    "credentials": {"existingSecret": "keys"},
}
REFERENCES = {
    "overflow": {"apiKey": {"name": "overflow", "key": "k"}},
    "watermark": {"key": {"name": "mark", "key": "k"}},
}


def read_by(component: str, values: dict[str, Any], pool: dict[str, Any] | None = None) -> list[str]:
    said = said_by("stratos.readSecrets", values, {"component": component, "pool": pool or {}})
    found: list[str] = json.loads(said)
    return found


def test_each_component_is_replaced_for_the_secrets_that_it_reads() -> None:
    assert read_by("gateway", OWN, {"secretConfig": REFERENCES}) == ["keys", "mark", "overflow", "redis", "s3"]
    assert read_by("lora-registry", OWN) == ["redis", "s3"]
    assert read_by("decode-worker", OWN) == ["s3"]
    assert read_by("router", OWN) == []


@pytest.mark.parametrize(
    ("outside", "readers"),
    [
        ({}, {"gateway", "lora-registry", "prefill-worker", "decode-worker", "redis", "object-store"}),
        ({"redis": OWN["redis"]}, {"gateway", "lora-registry", "prefill-worker", "decode-worker", "object-store"}),
        ({"objectStore": OWN["objectStore"]}, {"gateway", "lora-registry", "redis"}),
    ],
)
def test_keys_of_the_releases_own_stores_replace_both_ends(outside: dict[str, Any], readers: set[str]) -> None:
    values = {**SERVED_HERE, "credentials": OWN["credentials"], **outside}
    components = ("gateway", "router", "lora-registry", "prefill-worker", "decode-worker", "redis", "object-store")
    assert {name for name in components if "keys" in read_by(name, values)} == readers


def test_secrets_that_a_job_makes_are_not_waited_for() -> None:
    assert read_by("gateway", SERVED_HERE) == []


def test_another_content_is_another_digest_and_none_is_none() -> None:
    digests = [
        said_by("stratos.digestOf", SERVED_HERE, {"found": found, "component": component})
        for component in ("gateway", "redis")
        for found in ({"keys": {"key-pepper": "YQ=="}}, {"keys": {"key-pepper": "Yg=="}}, {})
    ]
    assert len(set(digests[:3])) == 3
    assert digests[2] == digests[5] == ""
    assert digests[3] == digests[4], "a key that gateways alone read"


def digests_by_component(folder: Path, content: str) -> dict[str, str]:
    """Annotations of pods as they were in a cluster whose Secrets hold ``content``: rendering asks none."""
    chart = Path(shutil.copytree(CHART, folder / content / CHART.name))
    file = chart / "templates" / "_secrets.tpl"
    asked, text = '(lookup "v1" "Secret" $.root.Release.Namespace $name).data', file.read_text()
    assert text.count(asked) == 1
    file.write_text(text.replace(asked, f'dict "redis-password" (printf "{content} of %s" $name)'))
    found = {}
    for made in render({**SERVED_HERE, "credentials": OWN["credentials"]}, chart=chart):
        if made["kind"] == "Deployment":
            metadata = made["spec"]["template"]["metadata"]
            component = metadata["labels"]["app.kubernetes.io/component"]
            found[component] = metadata.get("annotations", {}).get("stratosserve.io/secrets", "")
    return found


def test_pods_of_every_component_that_reads_a_secret_carry_its_digest(tmp_path: Path) -> None:
    before, after = (digests_by_component(tmp_path, content) for content in ("one", "another"))
    readers = {"gateway", "lora-registry", "prefill-worker", "decode-worker", "redis", "object-store"}
    assert {component for component, digest in before.items() if digest} == readers
    assert {component for component, digest in after.items() if digest != before[component]} == readers


def test_who_may_look_at_one_namespace_alone_is_told_of_a_missing_secret(tmp_path: Path) -> None:
    """The defect: Helm asked for another namespace first, which an administrator of one is refused."""
    chart = Path(shutil.copytree(CHART, tmp_path / CHART.name))
    file = chart / "templates" / "_check.tpl"
    text = file.read_text()
    for asked, answer in (
        ("""(lookup "v1" "Namespace" "" .Release.Namespace)""", """(dict "kind" "Namespace")"""),
        ("""(lookup "v1" "Namespace" "" "kube-system")""", """(fail "kube-system is forbidden")"""),
    ):
        assert text.count(asked) == 1
        text = text.replace(asked, answer)
    file.write_text(text)
    with pytest.raises(RenderError, match=r"credentials\.existingSecret: there is no Secret keys"):
        render({**SERVED_HERE, "credentials": OWN["credentials"]}, chart=chart)
