"""Special tokens of a tokenizer around prompts, as ``add_special_tokens`` of vLLM asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.text.chat_template import ChatMessage, ChatTemplate
from stratos_gateway.completion.requests import parse_completion
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.overflow.request import external_request
from stratos_gateway.preparation.dialects import CHAT, COMPLETION, Dialect
from stratos_gateway.preparation.generation import GenerationPreparer
from tests.support.reference.shipped_model import (
    VOCAB_SIZE,
    preparation_tools,
    served_model,
    surrounding_tokenizer,
)

TEXT = "a b"
CONVERSATION = {"messages": [{"role": "user", "content": TEXT}]}


@pytest.fixture
def model() -> ServedModel:
    """The shipped one, whose tokenizer has a token before every text and another behind it."""
    shipped, tokenizer = served_model(), surrounding_tokenizer()
    assert shipped.template is not None
    return replace(shipped, tokenizer=tokenizer, template=ChatTemplate(shipped.template.source, tokenizer))


async def ids_of(model: ServedModel, dialect: Dialect, body: dict[str, Any]) -> list[int]:
    preparer = GenerationPreparer(preparation_tools(model), dialect)
    prepared = await preparer.prepare({"model": "base", **body}, Tenant(name="t"), NO_TRACE)
    return list(prepared.specs[0].prompt_ids)


@pytest.mark.parametrize("asked", [None, True, False])
async def test_a_text_has_them_unless_it_is_said_and_a_conversation_where_it_is(
    model: ServedModel, asked: bool | None
) -> None:
    field = {} if asked is None else {"add_special_tokens": asked}
    text = model.tokenizer.encode(TEXT)
    assert model.template is not None
    told = model.template.encode([ChatMessage("user", TEXT)])
    before, behind = model.tokenizer.surroundings
    expected = text if asked is False else [*before, *text, *behind]
    assert await ids_of(model, COMPLETION, {"prompt": TEXT, **field}) == expected
    expected = [*before, *told, *behind] if asked else told
    assert await ids_of(model, CHAT, {**CONVERSATION, **field}) == expected
    assert (before, behind) == ([1], [4])


@pytest.mark.parametrize("asked", [True, False])
async def test_texts_to_embed_have_them_unless_it_is_said(model: ServedModel, asked: bool) -> None:
    before, behind = model.tokenizer.surroundings if asked else ([], [])
    ids = (*before, *model.tokenizer.encode(TEXT), *behind)
    assert await model.encode_inputs([TEXT, (5, 6)], adds_special=asked) == (ids, (5, 6))


def test_a_text_without_them_is_no_request_for_another_api() -> None:
    body = {"model": "base", "prompt": TEXT}
    assert external_request(parse_completion(body, VOCAB_SIZE)) is not None
    assert external_request(parse_completion({**body, "add_special_tokens": False}, VOCAB_SIZE)) is None
