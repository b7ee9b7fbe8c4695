"""Records of models as JSON: what is written is read again, and what cannot be is refused by its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.store.models.forms import model_from_json, model_id, model_to_json
from stratos.store.models.model_record import ModelRecord, ModelSpeculation
from stratos.store.records.record import Kind, make_body, parse_record

DIGEST, TEXTS = "a" * 64, "b" * 64
RECORD = ModelRecord(name="org/small", digest=DIGEST, text_digest=TEXTS, size="8b", max_model_len=512)


def test_a_record_is_read_as_it_was_written() -> None:
    record_id = model_id(RECORD.name, DIGEST)
    assert model_from_json(record_id, model_to_json(RECORD)) == RECORD
    stored = parse_record(Kind.MODEL, record_id, f"7 {make_body(model_to_json(RECORD))}")
    assert (stored.value, stored.version) == (RECORD, 7)
    assert not {"facts", "speculation"} & model_to_json(RECORD).keys(), "older gateways know neither"
    drafting = replace(RECORD, speculation=ModelSpeculation(method="draft", model="/d", num_speculative_tokens=4))
    assert model_from_json(record_id, model_to_json(drafting)) == drafting


@pytest.mark.parametrize(
    ("record_id", "changes", "param"),
    [
        (model_id("", DIGEST), {}, "name"),
        (model_id("with space", DIGEST), {}, "name"),
        (model_id("../up", DIGEST), {}, "name"),
        (model_id("x" * 65, DIGEST), {}, "name"),
        (model_id("small", "abc"), {}, "digest"),
        (model_id("small", DIGEST), {"text_digest": "../../etc"}, "text_digest"),
        (model_id("small", DIGEST), {"max_input_tokens": 0}, "max_input_tokens"),
        (model_id("small", DIGEST), {"quantization": "int3"}, "quantization"),
        (model_id("small", DIGEST), {"speculation": "ngram"}, "speculation"),
        (model_id("small", DIGEST), {"speculation": {"method": "eagle"}}, "speculation.method"),
        (model_id("small", DIGEST), {"speculation": {"method": "draft"}}, "speculation"),
        (model_id("small", DIGEST), {"speculation": {"method": "ngram", "model": "/d"}}, "speculation"),
        (model_id("small", DIGEST), {"speculation": {"method": "ngram", "heads": 2}}, "speculation.heads"),
        (
            model_id("small", DIGEST),
            {"speculation": {"method": "ngram", "num_speculative_tokens": 1_000_000}},
            "speculation.num_speculative_tokens",
        ),
        (model_id("small", DIGEST), {"weights": "w"}, "weights"),
        (model_id("small", DIGEST), {"name": "other"}, "model"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(record_id: str, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        model_from_json(record_id, {"text_digest": TEXTS, **changes})
    assert refusal.value.param == param
