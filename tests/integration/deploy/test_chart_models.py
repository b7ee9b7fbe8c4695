"""Models behind the same gateways: another one changes no pod of others, and how gateways of each model give way."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from scripts.chart.rendering import NO_RENDERER, has_renderer
from stratos.cli.main import app
from stratos.store.models.forms import model_from_json
from stratos.store.models.model_record import ModelSpeculation
from tests.support.kube.chart_objects import Object, container, kinds, one, variables
from tests.support.kube.chart_rendering import SERVED_HERE, checked, rendered, said_by
from tests.support.kube.kubernetes_schema import VERSIONS, problems

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
BASE: dict[str, Any] = {"name": "base", "servedName": "team/base", "source": {"claim": {"name": "base"}}}
SMALL: dict[str, Any] = {
    "name": "small",
    "servedName": "team/small",
    "terms": {"maxInputTokens": 128, "size": "8b"},
    "source": {"objectStore": {"prefix": "models/small", "digest": "d" * 64}},
    "pools": {"fast": {"decode": {"replicas": 1}}},
}


def templates(objects: list[Object]) -> dict[str, Object]:
    return {name: found["spec"]["template"] for name, found in kinds(objects, "Deployment").items()}


def recording(objects: list[Object], name: str) -> list[str]:
    """Arguments of the job that records a model, or that retires models."""
    (job,) = [o for found, o in kinds(objects, "Job").items() if found.rpartition("-")[0] == f"demo-{name}"]
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return [str(argument) for argument in found["command"]]


def test_another_model_changes_no_pod_but_its_own() -> None:
    before, after = (templates(checked({"models": models})) for models in ([BASE], [BASE, SMALL]))
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"demo-prefill-small", "demo-decode-small", "demo-decode-small-fast"}


def test_gateways_have_the_first_model_from_settings_and_all_by_records() -> None:
    found = checked({"models": [BASE | {"terms": {"size": "70b"}}, SMALL]})
    gateway = variables(container(found, "demo-gateway"))
    assert (gateway["STRATOS_GATEWAY_MODEL__NAME"], gateway["STRATOS_GATEWAY_MODEL__SIZE"]) == ("team/base", "70b")
    command = recording(found, "model-small")
    assert command[:4] == ["stratos", "admin", "record-model", "team/small"]
    given = dict(argument.removeprefix("--").split("=", 1) for argument in command[4:])
    assert (given["from"], given["digest"], given["owner"]) == ("models/small", "d" * 64, "values of stratos/demo")
    terms = json.loads(given["terms"])
    record = model_from_json(f"team/small/{given['digest']}", terms | {"text_digest": "a" * 64})
    assert (record.size, record.max_input_tokens) == ("8b", 128)
    assert {"wait-s", "object-store", "s3-endpoint"} <= given.keys()
    kept = [argument for argument in recording(found, "models") if argument.startswith("--keep=")]
    assert kept == ["--keep=team/base", "--keep=team/small"]
    assert "--folder=/model" in recording(found, "model-base"), "a changed source is a further revision"
    registry = variables(container(found, "demo-lora-registry"))["STRATOS_LORA_REGISTRY_REGISTRAR__RESERVED_NAMES"]
    assert json.loads(registry) == ["team/base"], "it asks the records for the others"


def test_drafts_of_a_model_are_in_its_record_and_in_its_decode_workers() -> None:
    speculation = {"method": "draft", "modelPath": "/drafts/small", "numSpeculativeTokens": 4}
    found = checked({"models": [BASE, SMALL | {"speculation": speculation}]})
    (terms,) = [text for text in recording(found, "model-small") if text.startswith("--terms=")]
    value = json.loads(terms.removeprefix("--terms=")) | {"text_digest": "a" * 64}
    assert model_from_json(f"team/small/{'d' * 64}", value).speculation == ModelSpeculation(
        method="draft", model="/drafts/small", num_speculative_tokens=4
    )
    head = "SCHEDULER__SPECULATION__"
    for name, role in (("decode-small", "DECODE"), ("decode-small-fast", "DECODE"), ("prefill-small", "PREFILL")):
        worker = variables(one(found, "Deployment", f"demo-{name}")["spec"]["template"]["spec"]["containers"][0])
        drafts = {name.partition(head)[2]: value for name, value in worker.items() if head in name}
        wanted = {"METHOD": "draft", "MODEL_PATH": "/drafts/small", "NUM_SPECULATIVE_TOKENS": "4"}
        assert drafts == (wanted if role == "DECODE" else {}), name
    own = {"decode": {"config": {"scheduler": {"speculation": {"method": "off"}}}}}
    found = checked({"models": [BASE | {"speculation": {"method": "ngram"}} | own]})
    assert variables(container(found, "demo-decode-base"))[f"STRATOS_DECODE_WORKER_{head}METHOD"] == "off"
    assert '"speculation":{"method":"ngram"}' in " ".join(recording(found, "model-base"))


PUBLISHED: dict[str, Any] = {"name": "big", "source": {"registry": {"name": "org/big", "digest": "e" * 64}}}
REFERENCE = f"registry:org/big@{'e' * 64}"


def test_workers_stream_a_published_model_into_their_cache_and_gateways_get_its_words_alone() -> None:
    found = checked({"models": [PUBLISHED]})
    for role in ("prefill", "decode"):
        spec = one(found, "Deployment", f"demo-{role}-big")["spec"]["template"]["spec"]
        worker = variables(spec["containers"][0])
        head = f"STRATOS_{role.upper()}_WORKER_MODEL__"
        assert (worker[f"{head}SOURCE"], worker[f"{head}CACHE_DIRECTORY"]) == (REFERENCE, "/model")
        assert not any(name.endswith("RUNNER__MODEL_PATH") for name in worker)
        assert "initContainers" not in spec
        (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "model"]
        assert mount == {"name": "model", "mountPath": "/model"}
        assert {"name": "model", "emptyDir": {}} in spec["volumes"]
    spec = one(found, "Deployment", "demo-gateway")["spec"]["template"]["spec"]
    assert variables(spec["containers"][0])["STRATOS_GATEWAY_MODEL__DIGEST"] == "e" * 64
    (init,) = spec["initContainers"]
    assert init["command"][:4] == ["stratos", "models", "fetch", REFERENCE]
    assert "--words" in init["command"]
    (tool,) = one(found, "Deployment", "demo-toolbox")["spec"]["template"]["spec"]["initContainers"]
    assert "--words" not in tool["command"], "adapters are checked against weights there"
    given = recording(found, "model-big")
    assert {f"--from={REFERENCE}", f"--digest={'e' * 64}"} <= set(given)


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        ({"claim": "node"}, {"persistentVolumeClaim": {"claimName": "node"}}),
        ({"hostPath": "/var/models"}, {"hostPath": {"path": "/var/models", "type": "Directory"}}),
        ({"sizeLimit": "20Gi"}, {"emptyDir": {"sizeLimit": "20Gi"}}),
        ({"medium": "Memory"}, {"emptyDir": {"medium": "Memory"}}),
    ],
)
def test_workers_of_a_node_share_a_cache_and_gateways_have_none(cache: dict[str, str], volume: Object) -> None:
    source = PUBLISHED["source"]["registry"] | {"cache": cache}
    found = rendered({"models": [PUBLISHED | {"source": {"registry": source}}]})
    for name, expected in (("demo-decode-big", volume), ("demo-gateway", {"emptyDir": {}})):
        volumes = one(found, "Deployment", name)["spec"]["template"]["spec"]["volumes"]
        assert {"name": "model", **expected} in volumes


def test_a_model_without_a_digest_is_read_where_its_workers_read_it() -> None:
    found = checked({"models": [BASE, SMALL | {"source": {"claim": {"name": "weights", "path": "a"}}}]})
    assert "--folder=/model" in recording(found, "model-small")
    (job,) = [o for name, o in kinds(found, "Job").items() if name.startswith("demo-model-small-")]
    spec = job["spec"]["template"]["spec"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "model"]
    assert (mount["mountPath"], mount["subPath"], mount["readOnly"]) == ("/model", "a", True)


def test_the_commands_of_the_jobs_exist() -> None:
    from typer.testing import CliRunner

    for verb in ("record-model", "retire-models"):
        asked = CliRunner().invoke(app, ["admin", verb, "--help"])
        assert asked.exit_code == 0, asked.output


def older(name: str, **annotations: str) -> Object:
    """Gateways of one model, as a release before had them."""
    labels = {
        "app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "gateway", "stratosserve.io/model": "base",
    }  # fmt: skip
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}}


def test_gateways_of_each_model_must_be_kept_before_they_are_replaced() -> None:
    ours = one(checked({}), "Deployment", "demo-gateway")
    kept = older("demo-gateway-base", **{"helm.sh/resource-policy": "keep"})
    for found in ([], [ours], [ours, kept]):
        assert said_by("stratos.upgradeRefusal", SERVED_HERE, {"found": found}) == ""
    refusal = said_by("stratos.upgradeRefusal", SERVED_HERE, {"found": [ours, kept, older("demo-gateway-large")]})
    assert "annotate deployment demo-gateway-large helm.sh/resource-policy=keep" in refusal
    assert "demo-gateway-base" not in refusal


def test_what_leads_to_older_gateways_stays_until_new_ones_are_ready() -> None:
    live = {"app.kubernetes.io/component": "gateway", "stratosserve.io/model": "base"}
    facts: dict[str, Any] = {"older": [older("demo-gateway-base")], "live": live}
    assert yaml.safe_load(said_by("stratos.keptLive", SERVED_HERE, facts | {"ready": 0})) == live
    for later in (facts | {"ready": 2}, facts | {"older": [], "ready": 0}, facts | {"live": {}, "ready": 0}):
        assert said_by("stratos.keptLive", SERVED_HERE, later) == ""
    objects = checked({})
    labels = one(objects, "Deployment", "demo-gateway")["spec"]["template"]["metadata"]["labels"]
    selector = one(objects, "Service", "demo-gateway")["spec"]["selector"]
    assert selector.items() <= labels.items()
    assert not selector.items() <= live.items(), "those of one model answer 404 for all others"


def test_terms_of_the_first_model_are_those_of_its_gateways() -> None:
    gateway = {"config": {"model": {"size": "8b", "defaultMaxTokens": 9}}}
    found = checked({"models": [BASE | {"terms": {"size": "70b", "maxInputTokens": 5}}], "gateway": gateway})
    (terms,) = [a.removeprefix("--terms=") for a in recording(found, "model-base") if a.startswith("--terms=")]
    assert json.loads(terms) == {"size": "8b", "max_input_tokens": 5, "default_max_tokens": 9}
    assert variables(container(found, "demo-gateway"))["STRATOS_GATEWAY_MODEL__SIZE"] == "8b"


def test_a_changed_entry_is_recorded_before_its_workers_are_replaced() -> None:
    """Those of a source that gateways do not know would take the place of workers that serve, and get no request."""
    values = SERVED_HERE | {"models": [BASE, SMALL]}
    live = [found for found in checked(values) if found["kind"] == "Deployment"]

    def is_first(model: dict[str, Any], found: list[Object] = live) -> bool:
        return bool(said_by("stratos.recordsFirst", values, {"model": model, "found": found}))

    assert not is_first(SMALL)
    changed = [
        SMALL | {"source": {"objectStore": {"prefix": "models/small", "digest": "e" * 64}}},
        SMALL | {"terms": {"size": "70b"}},
        SMALL | {"servedName": "team/tiny"},
    ]
    assert [is_first(model) for model in changed] == [True] * 3
    assert not is_first(SMALL | {"name": "new"}), "workers of nothing are replaced"
    gateways = [found for found in live if "gateway" in found["metadata"]["name"]]
    assert not is_first(changed[0], gateways)
    for found in live:
        found["metadata"]["annotations"] = {}
    assert not is_first(changed[0]), "of a chart that recorded nothing: its Secret lacks what the job needs"


def test_the_job_that_records_first_is_bounded_and_fits_full_nodes() -> None:
    values = SERVED_HERE | {"models": [BASE, SMALL]}
    hook = yaml.safe_load(said_by("stratos.recordHook", values, {"model": SMALL}))
    assert [problem for version in VERSIONS for problem in problems(version, hook)] == []
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert hook["spec"]["activeDeadlineSeconds"] == 900
    pod = hook["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "stratos.demo.serving"
    (found,) = pod["containers"]
    shipped = BASE | {"source": {"image": {"name": "model-demo"}}}
    of_image = yaml.safe_load(said_by("stratos.recordHook", values, {"model": shipped}))["spec"]["template"]["spec"]
    for each in (found, *of_image["initContainers"]):
        assert each["resources"]["requests"] == {"cpu": "25m", "memory": "32Mi"}
        assert each["resources"]["limits"]
    assert found["command"] == recording(checked({"models": [BASE, SMALL]}), "model-small")
