"""Calls that are enforced: whatever tokens the grammar allows, the parser finds calls that obey their schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from stratos.core.requests.grammar import calls_grammar
from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar
from stratos.text.output.call_grammar import call_grammar, is_enforced
from stratos.text.output.events import CallEnd, ReasoningDelta
from stratos.text.output.notation.arguments import json_arguments
from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_4_JSON, LLAMA_JSON
from stratos.text.output.syntaxes.mistral import MISTRAL, MISTRAL_ARGS
from stratos.text.output.syntaxes.phi import PHI
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER
from tests.support.reference.call_matchers import grammar_tokenizer, matcher_of, random_output, shape_of, takes
from tests.support.reference.output_events import calls_of, events_of, text_of

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Z\u00fcrich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER, FREE = Tool("get_weather", parameters=CITY, is_strict=True), Tool("now", parameters={"maxProperties": 1})
TAGS = ReasoningTags("<think>", "</think>")
SYNTAXES = [
    HERMES, PHI, MISTRAL, MISTRAL_ARGS, LLAMA_JSON, LLAMA_4_JSON, DEEPSEEK, DEEPSEEK_FENCED, QWEN_CODER, GLM, GEMMA,
    PYTHONIC, HARMONY,
]  # fmt: skip
MARKED = [s for s in SYNTAXES if s.form.arguments is json_arguments and not (s.starts_with or s.frame)]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
@pytest.mark.parametrize("mode", [ToolMode.REQUIRED, ToolMode.NAMED])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_random_tokens_make_calls_that_obey(syntax: CallSyntax, mode: ToolMode, is_parallel: bool) -> None:
    use = ToolUse(
        tools=(WEATHER, Tool("other", parameters=CITY)), mode=mode, named="get_weather", is_parallel=is_parallel
    )
    shape, num_outputs = shape_of(syntax, use), 0
    for seed in range(6):
        output = random_output(matcher_of(use, shape), seed)
        if output is None:
            continue
        num_outputs += 1
        events = events_of(shape, [output])
        calls = calls_of(events)
        assert text_of(events) == ""
        assert calls
        assert len(calls) == 1 or (is_parallel and mode is ToolMode.REQUIRED)
        assert all(event.is_complete for event in events if isinstance(event, CallEnd))
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), CITY)
            assert name == "get_weather" or mode is ToolMode.REQUIRED
    assert num_outputs > 1


@pytest.mark.parametrize("syntax", MARKED, ids=lambda syntax: syntax.name)
def test_calls_in_free_text_are_written_as_the_form_says(syntax: CallSyntax) -> None:
    form, use = syntax.form, ToolUse(tools=(WEATHER, FREE))
    call = form.before.replace("{name}", "get_weather") + '{"city": "Paris", "days": 2}' + form.after
    output = f"Well.{form.opening}{call}{form.between}{call}{form.closing}"
    shape = OutputShape(syntax=syntax)
    assert takes(matcher_of(use, shape), output)
    assert not takes(matcher_of(use, shape), output.replace("Paris", "Rome"))
    events = events_of(shape, [output])
    assert (text_of(events), len(calls_of(events))) == ("Well.", 2)


def call(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


GOOD, BAD = call("get_weather", {"city": "Paris", "days": 2}), call("get_weather", {"city": "Rome", "days": 2})


def test_strict_tools_obey_in_the_middle_of_free_text() -> None:
    use = ToolUse(tools=(WEATHER, FREE))
    shape = OutputShape(syntax=HERMES)
    for text, is_allowed in (
        ("no call at all, <tool_cal", True),
        (f"Let me see. {GOOD}", True),
        (f"{GOOD}\n{GOOD} and {call('now', {'any': 'thing'})} done", True),
        (BAD, False),
        (f"{GOOD}\n{BAD}", False),
        (call("gone", {}), False),
        ("a <tool_call> is what", False),
    ):
        assert takes(matcher_of(use, shape), text) is is_allowed, text


@pytest.mark.parametrize("syntax", [DEEPSEEK, DEEPSEEK_FENCED], ids=lambda syntax: syntax.name)
def test_a_call_outside_the_list_of_calls_is_not_written_freely(syntax: CallSyntax) -> None:
    """It is read as one, by a mark of its own."""
    form, shape, use = syntax.form, OutputShape(syntax=syntax), ToolUse(tools=(WEATHER, FREE))
    bad = form.before.replace("{name}", "get_weather") + '{"city": "Rome"}' + form.after
    good = bad.replace('"Rome"', '"Paris", "days": 2')
    assert calls_of(events_of(shape, [f"Well.{bad}"])) == [("get_weather", '{"city": "Rome"}')]
    for before in ("", "Well.", f"Well.{form.opening}{good}{form.closing}"):
        assert not takes(matcher_of(use, shape), before + bad)
        assert takes(matcher_of(use, shape), f"{before}{form.opening}{good}{form.closing} Well.")


def test_without_parallel_calls_nothing_follows_the_first() -> None:
    use = ToolUse(tools=(FREE,), is_parallel=False)
    one = call("now", {"a": 1})
    assert takes(matcher_of(use, OutputShape(syntax=HERMES)), f"text {one}")
    assert not takes(matcher_of(use, OutputShape(syntax=HERMES)), f"{one}\n{one}")
    assert not takes(matcher_of(use, OutputShape(syntax=HERMES)), f"{one} text")


def test_an_answer_is_calls_or_content_that_obeys() -> None:
    use, shape = ToolUse(tools=(WEATHER, FREE)), OutputShape(syntax=HERMES)

    def is_allowed(text: str) -> bool:
        return takes(
            GrammarMatcher(compile_grammar(calls_grammar(grammar, [CITY], "tools"), grammar_tokenizer())), text
        )

    grammar = call_grammar(use, shape, {}, {"type": "object", "properties": {"ok": {"type": "boolean"}}})
    assert is_allowed('{"ok": true}')
    assert is_allowed(f"{GOOD}\n{GOOD}")
    assert not is_allowed('{"ok": 5}')
    assert not is_allowed(BAD)
    assert not is_allowed("text")
    assert not is_allowed(f'{{"ok": true}} {GOOD}')


@pytest.mark.parametrize("is_reasoning", [True, False])
def test_the_grammar_begins_after_reasoning(is_reasoning: bool) -> None:
    use = ToolUse(tools=(WEATHER,), mode=ToolMode.REQUIRED)
    shape = OutputShape(syntax=HERMES, reasoning=TAGS, is_reasoning=is_reasoning)
    thought = ("" if is_reasoning else "<think>") + f"\nmaybe {BAD}\n</think>\n\n"
    assert takes(matcher_of(use, shape), thought + GOOD)
    assert not takes(matcher_of(use, shape), thought + BAD)
    assert takes(matcher_of(use, shape), GOOD) is True
    events = events_of(shape, [thought + GOOD])
    assert calls_of(events) == [("get_weather", '{"city": "Paris", "days": 2}')]
    assert any(isinstance(event, ReasoningDelta) and "Rome" in event.text for event in events)


def test_a_grammar_is_made_only_where_something_is_asked_for() -> None:
    assert not is_enforced(ToolUse(tools=(FREE,)))
    assert not is_enforced(ToolUse(tools=(WEATHER,), mode=ToolMode.NONE))
    assert is_enforced(ToolUse(tools=(WEATHER,)))
    assert is_enforced(ToolUse(tools=(FREE,), is_parallel=False))
    assert is_enforced(ToolUse(tools=(FREE,), mode=ToolMode.REQUIRED))
