"""Specs of Models: what is refused, and that nothing of a spec becomes anything but a text of the chart's objects."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stratos.common.errors import DependencyDown
from stratos_autoscaler.model_resources.plan import check_names
from stratos_autoscaler.model_resources.wanted.filling import filled, object_name
from stratos_autoscaler.model_resources.wanted.sources import SOURCES
from stratos_autoscaler.model_resources.wanted.spec import RefusedModel, StatusReason, read_spec
from stratos_autoscaler.model_resources.wanted.templates import read_templates
from tests.support.worlds.model_templates import (
    OTHER_SOURCE,
    SOURCE,
    config_map,
    model,
    pool,
    templates_with,
    wanted_of,
)

HOSTILE = ["$(REDIS_PASSWORD)", "a\nb", "a b", '"', "--owner=x", "../x", "", "x" * 600, 7, None, {"a": 1}, ["a"]]


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize("field", [(kind, name) for kind, found in SOURCES.items() for name in found.fields])
def test_no_text_of_a_source_takes_what_it_should_not(field: tuple[str, str], text: Any) -> None:
    kind, name = field
    good = {"prefix": "p", "digest": "a" * 64, "name": "n", "reference": "hub/x:1"}
    required = {n: good[n] for n, one in SOURCES[kind].fields.items() if one.is_required}
    with pytest.raises(RefusedModel, match=re.escape(f"spec.source.{kind}.{name}")) as refused:
        read_spec(model(source={kind: {**required, name: text}}))
    assert refused.value.reason is StatusReason.INVALID_SPEC


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"source": {}}, "exactly one"),
        ({"source": {"claim": {"name": "x"}, **SOURCE}}, "exactly one"),
        ({"source": {"ftp": {}}}, "none of"),
        ({"source": {"objectStore": {"prefix": "x"}}}, "digest is required"),
        ({"source": {"claim": {"name": "x", "subPath": "y"}}}, "no field of this source"),
        ({"servedName": "$(X)"}, "spec.servedName"),
        ({"servedName": "a@b"}, "spec.servedName"),
        ({"servedName": "-x"}, "spec.servedName"),
        ({"template": "../default"}, "spec.template"),
        ({"terms": {"maxInputTokens": "$(REDIS_PASSWORD)"}}, "spec.terms.maxInputTokens"),
        ({"terms": {"maxInputTokens": [1]}}, "spec.terms.maxInputTokens"),
        ({"terms": {"digest": "x"}}, "spec.terms.digest"),
        ({"decode": {"replicas": -1}}, "spec.decode.replicas"),
        ({"decode": {"replicas": True}}, "spec.decode.replicas"),
        ({"decode": {"maxReplicas": 0}}, "spec.decode.maxReplicas"),
        ({"decode": {"maxReplicas": 10**9}}, "spec.decode.maxReplicas"),
        ({"decode": {"resources": {}}}, "spec.decode.resources"),
        ({"decode": {"replicas": 3}}, "the size is hpa's"),
        ({"decode": {"minReplicas": 0}}, "minReplicas"),
        ({"decode": {"minReplicas": 9, "maxReplicas": 3}}, "above maxReplicas"),
        ({"decode": {"minReplicas": 11}}, "above maxReplicas"),
        ({"prefill": {"replicas": 0}, "decode": {"replicas": 0}}, "both pools"),
        ({"hostNetwork": True}, "no field of a Model"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_by_its_field(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedModel, match=said) as refused:
        wanted_of(model(**spec), templates_with())
    assert refused.value.reason is StatusReason.INVALID_SPEC


@pytest.mark.parametrize("name", ["Chat", "chat.fast", "x" * 33, "1chat", "chat-"])
def test_a_name_that_no_entry_of_models_could_have_is_refused(name: str) -> None:
    with pytest.raises(RefusedModel, match=r"metadata\.name"):
        read_spec(model(name))


def test_a_template_and_a_source_that_the_values_do_not_offer_are_named() -> None:
    templates = templates_with(small=pool("decode"), large=pool("decode"))
    with pytest.raises(RefusedModel, match="there are large, small") as refused:
        wanted_of(model(), templates)
    assert refused.value.reason is StatusReason.UNKNOWN_TEMPLATE
    with pytest.raises(RefusedModel, match="it has objectStore") as refused:
        wanted_of(model(template="small", source={"claim": {"name": "x"}}), templates)
    assert refused.value.reason is StatusReason.SOURCE_NOT_OFFERED
    with pytest.raises(RefusedModel, match="has no prefill pool"):
        wanted_of(model(template="small", prefill={"minReplicas": 2}), templates)


@pytest.mark.parametrize(
    ("name", "served", "reason"),
    [
        ("base", "x", StatusReason.NAME_OF_VALUES),
        ("base-fast", "x", StatusReason.NAME_OF_VALUES),
        ("chat", "team/base", StatusReason.NAME_OF_VALUES),
        ("chat", "taken", StatusReason.NAME_TAKEN),
    ],
)
def test_a_name_belongs_to_one(name: str, served: str, reason: StatusReason) -> None:
    with pytest.raises(RefusedModel) as refused:
        check_names(read_spec(model(name, servedName=served)), templates_with(), {"taken": "older"})
    assert refused.value.reason is reason


def test_values_fill_words_and_nothing_else() -> None:
    words = {"__MODEL__": "chat", "__PREFIX__": '", "x": "__DIGEST__\n---', "__DIGEST__": "d", "__GONE__": None}
    item = {
        "text": "a __PREFIX__ b", "plain": "__OTHER__", "number": 7, "list": ["x", "--terms=__GONE__"],
        "subPath": "__GONE__", "name": "__NAME_decode-__MODEL____",
    }  # fmt: skip
    made = filled(item, words, "demo")
    assert made == {
        "text": 'a ", "x": "__DIGEST__\n--- b', "plain": "__OTHER__", "number": 7, "list": ["x"],
        "name": "demo-decode-chat",
    }  # fmt: skip
    assert json.loads(json.dumps(made)) == made


def test_a_long_name_keeps_its_end_and_tells_itself_from_others() -> None:
    heads = ["a" * 53, "a" * 52 + "b"]
    names = [object_name(head, "decode-chat") for head in heads]
    assert [len(name) for name in names] == [63, 63]
    assert len(set(names)) == 2
    assert all(name.endswith("-decode-chat") for name in names)


def test_terms_and_sources_are_in_the_objects() -> None:
    wanted = wanted_of(model(servedName="team/chat", terms={"maxInputTokens": 7}), templates_with())
    command = wanted.record["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == [
        "record-model", "team/chat", "--owner=Model of stratos/demo/chat", '--terms={"max_input_tokens":7}',
        f"--digest={'a' * 64}",
    ]  # fmt: skip
    other = wanted_of(model(source=OTHER_SOURCE), templates_with())
    assert other.record_digest != wanted.record_digest
    assert not any("--terms" in part for part in other.record["spec"]["template"]["spec"]["containers"][0]["command"])
    folders = {w.objects[0]["spec"]["template"]["spec"]["containers"][0]["args"][2] for w in (wanted, other)}
    assert len(folders) == 2, "a new digest never meets the files of an old one"


def test_templates_of_another_version_are_not_filled() -> None:
    for text, said in (
        ('{"format": 2}', "format 2"),
        ("{}", "format"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
    ):
        found = config_map()
        found["data"]["facts"] = text
        with pytest.raises(DependencyDown, match=said):
            read_templates(found)
