"""Budgets of reasoning: so many tokens and not one more, then its end, wherever an attempt or a draft begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from llguidance import LLTokenizer

from stratos.core.requests.grammar import calls_grammar
from stratos.core.requests.tools import NO_TOOLS, Tool, ToolMode, ToolUse
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar, make_grammar_tokenizer
from stratos.text.output.call_grammar import call_grammar, end_of_reasoning
from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos.text.output.syntaxes.harmony import CHANNEL, END, HARMONY, MESSAGE, START
from stratos.text.output.syntaxes.hermes import HERMES
from tests.support.paths import BASE_MODEL
from tests.support.reference.call_matchers import END_ID, grammar_tokenizer, takes_ids
from tests.support.reference.shipped_model import VOCAB_SIZE, shipped_tokenizer

TAGS = ReasoningTags("<think>", "</think>")
TAG_IDS = {"<think>": 2, "</think>": 3}
CALL_IDS = {"<tool_call>": 0, "</tool_call>": 1}
FRAME_IDS = {CHANNEL: 0, MESSAGE: 1, START: 2, END: 3}
BUDGET = 5
INSIDE = OutputShape(reasoning=TAGS, is_reasoning=True)


def matcher(
    shape: OutputShape,
    special: Mapping[str, int],
    use: ToolUse = NO_TOOLS,
    budget: int = BUDGET,
    tokenizer: LLTokenizer | None = None,
) -> GrammarMatcher:
    text = call_grammar(use, shape, special, None, budget)
    return GrammarMatcher(compile_grammar(calls_grammar(text, [], "tools"), tokenizer or grammar_tokenizer()))


@cache
def qwen_tokenizer() -> LLTokenizer:
    """Tags are added tokens, and text all the same: so has Qwen 3 them."""
    definition = json.loads((BASE_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    for tag, token in {**TAG_IDS, **CALL_IDS}.items():
        [added] = [added for added in definition["added_tokens"] if added["id"] == token]
        del definition["model"]["vocab"][added["content"]]
        definition["model"]["vocab"][tag] = token
        added |= {"content": tag, "special": False}
    return make_grammar_tokenizer(json.dumps(definition), VOCAB_SIZE, [END_ID])


def allowed(state: GrammarMatcher) -> list[int]:
    row = np.zeros((VOCAB_SIZE + 31) // 32, dtype=np.int32)
    state.fill_mask(row.ctypes.data, row.nbytes)
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist()
    return found


def words(text: str) -> list[int]:
    return list(shipped_tokenizer().encode_plain(text))


@cache
def long() -> list[int]:
    """Twelve tokens of plain text."""
    return words("one two three four five six seven eight nine ten eleven twelve")[:12]


@pytest.mark.parametrize("budget", [0, 1, BUDGET])
def test_reasoning_ends_after_so_many_tokens_and_not_before(budget: int) -> None:
    state = matcher(INSIDE, TAG_IDS, budget=budget)
    for token in long()[:budget]:
        found = allowed(state)
        assert 3 in found, "it may end earlier"
        assert len(found) > 1000, "and need not"
        assert END_ID not in found
        state.accept(token)
    assert allowed(state) == [3]
    state.accept(3)
    for token in long():
        assert END_ID in allowed(state)
        state.accept(token)


def test_the_budget_holds_for_drafts_and_after_a_move() -> None:
    state = matcher(INSIDE, TAG_IDS)
    assert len(state.after(long())) == BUDGET
    assert len(state.after([*long()[:3], 3, *long()])) == 4 + len(long()), "what comes behind the end does not count"
    state.replay(long()[:3])
    assert len(state.after(long())) == BUDGET - 3
    state.replay(long()[:2])
    assert state.forced() == [3]


def test_an_answer_that_begins_by_itself_may_reason_or_not() -> None:
    shape = OutputShape(reasoning=TAGS)
    assert takes_ids(matcher(shape, TAG_IDS), long())
    assert takes_ids(matcher(shape, TAG_IDS), [2, *long()[:BUDGET], 3, *long()])
    assert not takes_ids(matcher(shape, TAG_IDS), [2, *long()[: BUDGET + 1], 3])


@pytest.mark.parametrize("use", [NO_TOOLS, ToolUse(tools=(Tool("f"),))], ids=["plain", "tools"])
def test_a_budget_holds_for_tags_that_are_text_as_well(use: ToolUse) -> None:
    within = OutputShape(syntax=HERMES, reasoning=TAGS, is_reasoning=True)
    inside = matcher(within, TAG_IDS, use, tokenizer=qwen_tokenizer())
    assert len(inside.after([*long()[:3], 3, *long()])) == 4 + len(long())
    assert len(inside.after(long())) == BUDGET
    inside.replay(long()[:BUDGET])
    assert (allowed(inside), inside.forced()) == ([3], [3])

    def begun() -> GrammarMatcher:
        return matcher(OutputShape(syntax=HERMES, reasoning=TAGS), TAG_IDS, use, tokenizer=qwen_tokenizer())

    assert takes_ids(begun(), [2, *long()[:BUDGET], 3, *long()])
    assert takes_ids(begun(), [2, 3, *long()])
    assert not takes_ids(begun(), [2, *long()[: BUDGET + 1]])


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_calls_have_their_tokens_where_these_are_text_as_well(mode: ToolMode) -> None:
    use = ToolUse(tools=(Tool("f", parameters={"type": "object"}, is_strict=True),), mode=mode)
    shape = OutputShape(syntax=HERMES, reasoning=TAGS)
    text = call_grammar(use, shape, {**TAG_IDS, **CALL_IDS})
    state = GrammarMatcher(compile_grammar(calls_grammar(text, [], "tools"), qwen_tokenizer()))
    call = [0, *words('\n{"name": "f", "arguments": {"a": 1}}\n'), 1]
    assert takes_ids(state, [2, *long(), 3, *call])
    assert not state.compiled.is_error()


def test_a_spelled_out_tag_begins_no_reasoning_beside_its_budget() -> None:
    for text in ("<think>", " \n<think> so"):
        assert not takes_ids(matcher(OutputShape(reasoning=TAGS), TAG_IDS), words(text)), text
    assert takes_ids(matcher(OutputShape(reasoning=TAGS), TAG_IDS), words("a <think> so"))


def test_calls_follow_reasoning_within_its_budget() -> None:
    call = words('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    shape = OutputShape(syntax=HERMES, reasoning=TAGS, is_reasoning=True)
    for mode in (ToolMode.AUTO, ToolMode.REQUIRED):
        use = ToolUse(tools=(Tool("f"),), mode=mode)
        assert takes_ids(matcher(shape, TAG_IDS, use), [*long()[:BUDGET], 3, *call])
        assert not takes_ids(matcher(shape, TAG_IDS, use), [*long()[: BUDGET + 1], 3, *call])
        assert takes_ids(matcher(shape, TAG_IDS, use), [3, *long()]) is (mode is ToolMode.AUTO)


@pytest.mark.parametrize("tools", [(), (Tool("f"),)])
def test_a_framed_output_reasons_once_within_its_budget(tools: tuple[Tool, ...]) -> None:
    shape = OutputShape(syntax=HARMONY, frame=HARMONY.frame)
    use = ToolUse(tools=tools) if tools else NO_TOOLS
    analysis = [0, *words("analysis"), 1]
    answer, begin = [0, *words("final"), 1, *long()], [2, *words("assistant")]
    for num_words, is_allowed in ((0, True), (BUDGET, True), (BUDGET + 1, False)):
        ids = [*analysis, *long()[:num_words], 3, *begin, *answer]
        assert takes_ids(matcher(shape, FRAME_IDS, use), ids) is is_allowed, num_words
    twice = [*analysis, *long()[:2], 3, *begin] * 2
    assert not takes_ids(matcher(shape, FRAME_IDS, use), [*twice, *answer])
    assert takes_ids(matcher(shape, FRAME_IDS, use), answer)
    assert end_of_reasoning(shape) == END
