"""Whatever the grammar of an answer lets through passes the look at its end, in every syntax of calls."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import Internal
from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_JSON
from stratos.text.output.syntaxes.mistral import MISTRAL, MISTRAL_ARGS
from stratos.text.output.syntaxes.phi import PHI
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER
from stratos_gateway.answering.finished import FinishedCheck, Obligations
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.openai.requests import parse_chat
from stratos_gateway.preparation.enforcement import finished_check
from tests.support.reference.call_matchers import matcher_of, random_output, shape_of

OWN = [QWEN_CODER, GLM, GEMMA, PYTHONIC]
SYNTAXES = [HERMES, PHI, MISTRAL, MISTRAL_ARGS, LLAMA_JSON, DEEPSEEK, DEEPSEEK_FENCED, HARMONY, *OWN]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 0, "maximum": 20},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
CHUNK: dict[str, Any] = {"index": 0, "token_ids": [], "entries": [], "is_first": True}


def answer_of(shape: OutputShape | None) -> Answer:
    return Answer(
        id="a", created=1, model="m", num_logprobs=None, num_prompt_logprobs=None, echoes_logprobs=False,
        return_token_ids=False, include_usage=False, prompts=((1,),), num_choices=1, shape=shape,
    )  # fmt: skip


def check_of(shape: OutputShape | None, **wanted: Any) -> FinishedCheck:
    return FinishedCheck(answer_of(shape), Obligations(**wanted))


def chunk(text: str, reason: str | None = "stop", **more: Any) -> ChoiceChunk:
    return ChoiceChunk(**{**CHUNK, "text": text, "finish_reason": reason, **more})


@pytest.mark.parametrize("mode", [ToolMode.REQUIRED, ToolMode.NAMED, ToolMode.AUTO])
@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_what_the_grammar_lets_through_passes(syntax: CallSyntax, mode: ToolMode) -> None:
    tool = Tool("look", parameters=SCHEMA, is_strict=True, place="tools[0].function")
    use = ToolUse(tools=(tool,), mode=mode, named="look" if mode is ToolMode.NAMED else "")
    shape, texts = shape_of(syntax, use), list[str]()
    for seed in range(5):
        text = random_output(matcher_of(use, shape), seed)
        texts += [] if text is None else [text]
    assert texts or mode is ToolMode.AUTO
    for text in texts:
        check_of(shape, use=use).require([chunk(text)])
    if mode is not ToolMode.AUTO:
        with pytest.raises(Internal, match="no call"):
            check_of(shape, use=use).require([chunk("")])


def test_pieces_are_put_together_and_a_failure_stays() -> None:
    check = check_of(None, content=SCHEMA)
    check.add(0, '{"city": "Rome", ')
    assert check.passes([chunk('"days": ', None)])
    assert not check.passes([chunk('21, "unit": "C"}')])
    with pytest.raises(Internal, match="maximum"):
        check.require(())


@pytest.mark.parametrize("more", [{"reason": "length"}, {"reason": "content_filter"}, {"stop": "x"}, {"is_open": True}])
def test_what_was_cut_short_is_not_looked_at(more: dict[str, Any]) -> None:
    assert check_of(None, content=SCHEMA).passes([chunk("{", **more)])
    assert not check_of(None, content=SCHEMA).passes([chunk("{")])


def test_an_answer_that_a_stop_token_cuts_short_is_none() -> None:
    body = parse_chat(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {"type": "json_object"},
            "stop_token_ids": [7],
        },
        4096,
    )
    for ids, passes in (([5, 7], True), ([7, 5], False), ([], False)):
        check = finished_check(answer_of(None), body, is_part=False)
        assert check is not None
        assert check.passes([chunk('{"city": ', token_ids=ids)]) is passes
