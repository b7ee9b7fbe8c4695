"""What is looked for in a chat's output, by the model's template and by what the request asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.text.chat_template import ChatTemplate
from stratos.text.detokenizer import Detokenizer
from stratos.text.output.chat_format import chat_format
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.answering.request import PreparedGeneration
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.preparation.dialects import CHAT, COMPLETION, MESSAGE, Dialect
from stratos_gateway.preparation.generation import GenerationPreparer
from stratos_gateway.preparation.output_shape import special_ids
from tests.support.paths import BASE_MODEL
from tests.support.reference.shipped_model import preparation_tools, served_model

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>\\n' }}{# </think> #}"
OPTIONAL = "{% for m in messages %}{{ m.content }}{% endfor %}{# <think> </think> #}"
HARMONY = "{{ messages[0].content }}{% if tools %}{{ tools[0].function.name }}{% endif %}{# <|channel|> <|message|> #}"
STARTING = "{{ messages[0].content }}{% if tools %}{{ tools[0].function.name }}{% endif %}{# <|python_tag|> #}"
SPECIAL = "{{ messages[0].content }}{% if tools %}{{ tools[0].function.name }}{% endif %}{# <arg_key> <arg_value> #}"


class AllGrammars:
    """Finds no fault."""

    async def check(self, spec: GrammarSpec, param: str, tenant: str) -> None:
        """Accept it."""


def model_of(template: str) -> ServedModel:
    shipped = served_model()
    grammars = cast("GrammarCheck", AllGrammars())
    template_of = ChatTemplate(template, shipped.tokenizer)
    return replace(shipped, template=template_of, chat=chat_format(template), grammars=grammars)


async def prepared(template: str, **body: Any) -> PreparedGeneration:
    model = model_of(template)
    tools = preparation_tools(model)
    dialect = COMPLETION if "prompt" in body else CHAT
    fields = {"model": "base", **({} if "prompt" in body else {"messages": MESSAGES}), **body}
    return await GenerationPreparer(tools, dialect).prepare(fields, Tenant(name="t"), NO_TRACE)


def chunk(text: str, finish_reason: str | None = None, *, is_first: bool = False) -> ChoiceChunk:
    return ChoiceChunk(0, text, [7], [], finish_reason, is_first)


async def test_a_prompt_that_opens_the_reasoning_begins_the_output_in_it() -> None:
    shape = (await prepared(THINKING)).renderer.answer.shape
    assert shape is not None
    assert shape.is_reasoning
    other = (await prepared(OPTIONAL)).renderer.answer.shape
    assert other is not None
    assert not other.is_reasoning


@pytest.mark.parametrize(
    ("template", "body"),
    [
        ("{{ messages[0].content }}", {}),
        ("{{ messages[0].content }}", {"tools": TOOLS, "tool_choice": "none"}),
        (THINKING, {"prompt": "x"}),
    ],
)
async def test_an_output_in_which_nothing_is_looked_for_has_no_shape(template: str, body: dict[str, Any]) -> None:
    found = await prepared(template, **body)
    assert found.renderer.answer.shape is None
    assert found.specs[0].shown_ids == frozenset()


async def test_reasoning_and_answer_are_told_apart_whole_and_streamed() -> None:
    renderer = (await prepared(THINKING)).renderer
    body = renderer.body([chunk("so\n</think>\n\nyes", "stop", is_first=True)], Usage(1, 2))
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("so", "so", "yes")
    assert "tool_calls" not in message
    renderer = (await prepared(THINKING)).renderer
    pieces = [chunk("s", is_first=True), chunk("o\n</thi"), chunk("nk>\n\ny"), chunk("es", "stop")]
    deltas = [event["choices"][0] for event in renderer.events(pieces)]
    assert [choice["delta"] for choice in deltas] == [
        {"role": "assistant", "content": ""},
        {"reasoning": "s", "reasoning_content": "s"},
        {"reasoning": "o", "reasoning_content": "o"},
        {"content": "y"},
        {"content": "es"},
    ]
    assert [choice["finish_reason"] for choice in deltas] == [None, None, None, None, "stop"]


async def test_an_answer_that_is_all_reasoning_has_no_content() -> None:
    renderer = (await prepared(THINKING)).renderer
    message = renderer.body([chunk("never ends", "length", is_first=True)], Usage(1, 2))["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("never ends", "")


async def test_marks_that_are_special_tokens_are_shown_to_the_reader() -> None:
    definition = (BASE_MODEL / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer(definition.replace("<|system|>", "<tool_call>"))
    mark, text = tokenizer.special_tokens["<tool_call>"], tokenizer.encode_plain("f</tool_call>")
    shape = (await prepared(SPECIAL, tools=TOOLS)).renderer.answer.shape
    assert shape is not None
    shown = special_ids(replace(served_model(), tokenizer=tokenizer), shape)
    assert shown == {"<tool_call>": mark}
    assert Detokenizer(tokenizer, shown_ids=frozenset(shown.values())).push([mark, *text]) == "<tool_call>f</tool_call>"
    assert Detokenizer(tokenizer).push([mark, *text]) == "f</tool_call>"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tool_choice": "required"}, "calls"),
        ({"parallel_tool_calls": False}, "calls"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "calls"),
        ({"response_format": {"type": "json_object"}}, "calls"),
        ({"response_format": {"type": "json_object"}, "tool_choice": "none"}, "json_schema"),
    ],
)
@pytest.mark.parametrize("template", [SPECIAL, HARMONY, STARTING])
async def test_every_syntax_enforces_what_is_asked_for(template: str, fields: dict[str, Any], told: str) -> None:
    found = await prepared(template, **{"tools": TOOLS, **fields})
    wanted = found.options.grammar
    assert wanted is not None
    assert (found.constrained, found.specs[0].sampling.grammar) == (told, wanted.spec)
    shape = found.renderer.answer.shape
    is_free = "response_format" not in fields
    assert shape is None or shape.syntax is None or bool(shape.syntax.starts_with) is (is_free and template is STARTING)


async def test_content_that_obeys_a_schema_comes_after_the_reasoning() -> None:
    found = await prepared(THINKING, response_format={"type": "json_object"})
    grammar = found.specs[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, found.constrained) == ("calls", "json_schema")
    assert "start: thought gap body" in grammar.text
    message = found.renderer.body([chunk('so\n</think>\n{"a": 1}', "stop", is_first=True)], Usage(1, 2))["choices"][0]
    assert (message["message"]["reasoning"], message["message"]["content"]) == ("so", '{"a": 1}')
    regex = await prepared(THINKING, structured_outputs={"regex": "a+"})
    assert (regex.constrained, regex.renderer.answer.shape) == ("regex", None)


EFFORT = "{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}"
SWITCH = (
    "{% if enable_thinking %}on{% else %}off{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}"
)
ENDS = "{{ messages[0].content }}"
SPELLED = "{{ messages[0].content }}{# <channel|> #}"


async def rendered(template: str, **body: Any) -> str:
    return served_model().tokenizer.decode((await prepared(template, **body)).specs[0].prompt_ids, skip_special=False)


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        (EFFORT, {"reasoning_effort": "high"}, "highhi"),
        (EFFORT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, "lowhi"),
        (SWITCH, {"chat_template_kwargs": {"enable_thinking": True}}, "onhi"),
        (SWITCH, {"reasoning_effort": "none"}, "offhi"),
        (ENDS, {"reasoning_effort": "none"}, "hi"),
    ],
)
async def test_the_template_is_used_as_the_request_says(template: str, fields: dict[str, Any], expected: str) -> None:
    assert await rendered(template, **fields) == expected


@pytest.mark.parametrize(
    ("template", "fields", "param"),
    [
        (ENDS, {"reasoning_effort": "high"}, "reasoning_effort"),
        (ENDS, {"reasoning_effort": 3}, "reasoning_effort"),
        (THINKING, {"reasoning_effort": "none"}, "reasoning_effort"),
        (ENDS, {"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
    ],
)
async def test_a_template_that_cannot_refuses_by_name(template: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await prepared(template, **fields)
    assert caught.value.param == param


def tagged_model(template: str, *, is_special: bool = True) -> ServedModel:
    """A model whose end of reasoning is a token."""
    definition = (BASE_MODEL / "tokenizer.json").read_text(encoding="utf-8")
    parsed = json.loads(definition.replace("<|system|>", "</think>").replace("<|assistant|>", "<|channel|>"))
    for added in parsed["added_tokens"]:
        added["special"] &= is_special
    tokenizer = Tokenizer(json.dumps(parsed))
    return replace(model_of(template), tokenizer=tokenizer, template=ChatTemplate(template, tokenizer))


async def budgeted(
    template: str, dialect: Dialect = CHAT, *, is_special: bool = True, **body: Any
) -> PreparedGeneration:
    tools = preparation_tools(tagged_model(template, is_special=is_special))
    fields = {"model": "base", "messages": MESSAGES, **body}
    return await GenerationPreparer(tools, dialect).prepare(fields, Tenant(name="t"), NO_TRACE)


BUDGET: dict[str, Any] = {"thinking_token_budget": 7}
MESSAGE_BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}


@pytest.mark.parametrize(
    ("dialect", "fields", "budget", "told"),
    [
        (CHAT, BUDGET, 7, ""),
        (CHAT, {**BUDGET, "tools": TOOLS}, 7, ""),
        (CHAT, {**BUDGET, "tools": TOOLS, "tool_choice": "required"}, 7, "calls"),
        (CHAT, {**BUDGET, "response_format": {"type": "json_object"}}, 7, "json_schema"),
        (CHAT, {**BUDGET, "structured_outputs": {"regex": "a"}}, None, "regex"),
        (CHAT, {}, None, ""),
        (MESSAGE, MESSAGE_BUDGET, 1024, ""),
    ],
)
async def test_a_budget_of_reasoning_is_part_of_the_grammar(
    dialect: Dialect, fields: dict[str, Any], budget: int | None, told: str
) -> None:
    found = await budgeted(THINKING, dialect, **fields)
    grammar = found.specs[0].sampling.grammar
    assert (found.reasoning_budget, found.constrained) == (budget, told)
    assert (f"[max_tokens={budget}]" in (grammar.text if grammar else "")) is (budget is not None)
    assert found.body.ignored == ()


async def test_an_end_that_is_text_as_well_bounds_and_counts_reasoning() -> None:
    found = await budgeted(THINKING, is_special=False, **BUDGET)
    grammar, [end] = found.specs[0].sampling.grammar, found.tokenizer.encode("</think>")
    assert grammar is not None
    assert (found.reasoning_budget, f"<[{end}]>" in grammar.text) == (7, True)
    ids = [*found.tokenizer.encode("so it is"), end, *found.tokenizer.encode("yes")]
    whole = ChoiceChunk(0, found.tokenizer.decode(ids), ids, [], "stop", True)
    answer = found.renderer.body([whole], Usage(1, len(ids)))
    assert answer["choices"][0]["message"]["content"] == "yes"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == ids.index(end) + 1


async def test_a_budget_that_no_model_can_keep_is_refused_or_named() -> None:
    for template in (ENDS, SPELLED):  # without reasoning, and with an end of it that is several tokens
        with pytest.raises(BadRequest) as caught:
            await budgeted(template, **BUDGET)
        assert (caught.value.param, caught.value.code) == ("thinking_token_budget", "unsupported_parameter")
        found = await budgeted(template, MESSAGE, **MESSAGE_BUDGET, output_config={"effort": "high"})
        assert found.body.ignored == ("output_config.effort", "thinking.budget_tokens")
        assert found.specs[0].sampling.grammar is None
    off = await budgeted(SWITCH, **BUDGET, reasoning_effort="none")
    assert (off.reasoning_budget, off.specs[0].sampling.grammar) == (None, None)


async def test_a_message_says_its_effort_to_a_template_that_reads_it() -> None:
    found = await budgeted(EFFORT, MESSAGE, max_tokens=9, output_config={"effort": "high"})
    assert served_model().tokenizer.decode(found.specs[0].prompt_ids, skip_special=False) == "highhi"
    assert found.body.ignored == ()


async def test_fields_that_mean_nothing_here_are_named() -> None:
    assert (await prepared(ENDS, metadata={"a": "b" * 65}, store=True)).body.ignored == ("metadata", "store")
    assert (await prepared(ENDS, metadata={"a": "b"}, store=True)).body.ignored == ("store",), "it is a cost tag"
    assert (await prepared(ENDS, store=False)).body.ignored == ()
