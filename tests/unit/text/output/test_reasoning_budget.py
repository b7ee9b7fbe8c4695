"""Budgets of reasoning: so many tokens and not one more, then its end, wherever an attempt or a draft begins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from stratos.core.requests.grammar import calls_grammar
from stratos.core.requests.tools import NO_TOOLS, Tool, ToolMode, ToolUse
from stratos.engine.grammar.matcher import GrammarMatcher
from stratos.text.grammar import compile_grammar
from stratos.text.output.call_grammar import call_grammar, end_of_reasoning
from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos.text.output.syntaxes.harmony import CHANNEL, END, HARMONY, MESSAGE, START
from stratos.text.output.syntaxes.hermes import HERMES
from tests.support.reference.call_matchers import END_ID, grammar_tokenizer, takes_ids
from tests.support.reference.shipped_model import VOCAB_SIZE, shipped_tokenizer

TAGS = ReasoningTags("<think>", "</think>")
TAG_IDS = {"<think>": 2, "</think>": 3}
FRAME_IDS = {CHANNEL: 0, MESSAGE: 1, START: 2, END: 3}
BUDGET = 5
INSIDE = OutputShape(reasoning=TAGS, is_reasoning=True)


def matcher(
    shape: OutputShape, special: Mapping[str, int], use: ToolUse = NO_TOOLS, budget: int = BUDGET
) -> GrammarMatcher:
    text = call_grammar(use, shape, special, None, budget)
    return GrammarMatcher(compile_grammar(calls_grammar(text, [], "tools"), grammar_tokenizer()))


def allowed(state: GrammarMatcher) -> list[int]:
    row = np.zeros((VOCAB_SIZE + 31) // 32, dtype=np.int32)
    state.fill_mask(row)
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
