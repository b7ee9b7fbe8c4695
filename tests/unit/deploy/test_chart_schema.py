"""values.schema.json and the settings classes say the same, and every setting is reached by a value."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from scripts.chart.generate_schema import CHART, generated
from scripts.chart.schema.settings import OWNED, camel, is_secret, variables
from scripts.chart.schema.values import InvalidValues, schema_of_values
from scripts.docs.document_settings import SERVICES, chart_path, service_class
from stratos.rpc.settings import env_name_of, settings_of

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def refusals(changes: dict[str, Any]) -> list[str]:
    """Paths that the schema refuses when values.yaml is changed so."""
    values = copy.deepcopy(VALUES)
    for path, value in changes.items():
        *parents, name = path.split(".")
        place = values
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place.setdefault(parent, {})
        place[name] = value
    return [f"{error.json_path}: {error.message}" for error in Draft7Validator(SCHEMA).iter_errors(values)]


def test_files_are_up_to_date() -> None:
    stale = [path.name for path, text in generated().items() if path.read_text() != text]
    assert stale == [], "run python -m scripts.chart.generate_schema"


def test_the_defaults_fit() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert refusals({}) == []


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_reached(service: str) -> None:
    cls, known = service_class(service), variables()[camel(service)]
    for setting in settings_of(cls):
        path = chart_path(setting)
        if path in OWNED:
            continue
        names = known["secretConfig" if is_secret(setting) else "config"]
        assert known["prefix"] + names[path] == env_name_of(cls, setting.path)
        schema = SCHEMA["definitions"][camel(service) + ("SecretConfig" if is_secret(setting) else "Config")]
        for name in path.split("."):
            schema = schema["properties"][name]
        assert schema.get("description") or "$ref" in schema


def test_what_the_chart_decides_itself_is_a_setting() -> None:
    known = {chart_path(setting) for service in SERVICES for setting in settings_of(service_class(service))}
    assert set(OWNED) - known == set()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("router.replicas", -1),
        ("router.replicas", "2"),
        ("router.replicaCount", 2),
        ("routers", {}),
        ("router.config.queue.ttl", 3),
        ("router.config.queue.ttlS", "soon"),
        ("decodeWorker.config.runner.modelPath", "/model"),
        ("decodeWorker.config.scheduler.maxNumSeqs", 0),
        ("gateway.config.keyPepper", "in the open"),
        ("gateway.config.watermark.key", "in the open"),
        ("gateway.secretConfig.watermark.key", {"name": "only a name"}),
        ("models.0.decode.replicas", -1),
        ("models.0.decode.config.device", "tpu"),
        ("models.0.name", "Upper"),
        ("models.0.source", {}),
        ("models.0.source.claim", {"name": "two sources"}),
        ("models", []),
        ("image.pullPolicy", "Sometimes"),
        ("decodeWorker.gpu.sharing", "half"),
        ("decodeWorker.resources.limits", {"memory": "lots"}),
        ("fullnameOverride", "x" * 54),
        ("networkPolicies.nodes", ["anywhere"]),
        ("networkPolicies.gatewayClients", [{}]),
        ("serviceAccounts.components", {"decodeWorker": {}}),
        ("backup.objectStoreUrl", "file:///copies"),
        ("decodeWorker.resources.limits", {"memory": "512ki"}),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(path: str, value: Any) -> None:
    found = refusals({path: value})
    parts = [part for part in path.split(".") if not part.isdigit()]
    assert any(all(part in text for part in parts[:1]) and parts[-1] in text for text in found), found


def test_a_pool_of_a_model_takes_what_its_defaults_take() -> None:
    assert refusals({"models.0.decode": {"replicas": 4, "config": {"scheduler": {"maxNumSeqs": 8}}, "floor": 3}}) == []


def test_amounts_may_be_written_as_kubernetes_takes_them() -> None:
    for amount in (2, 0.5, "0.5", "500m", "524288Ki", "2G", "1.5Gi", "1E3", "1k"):
        assert refusals({"decodeWorker.resources.limits": {"memory": amount}}) == []
    assert refusals({"decodeWorker.resources.limits": {"memory": -1}})


def test_an_empty_default_must_say_what_it_holds() -> None:
    with pytest.raises(InvalidValues, match=r"a\.b: an empty default"):
        schema_of_values("a:\n  b: []\n")
