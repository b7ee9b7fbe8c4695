"""Two answers to one request say together what one would have said, wherever the first one was cut."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from stratos.core.requests.continuation import left_open
from stratos.core.requests.records import FinishReason
from stratos.core.requests.tools import ToolMode
from stratos.text.detokenizer import Detokenizer
from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos.text.stop import StopMatcher
from stratos_gateway.anthropic.rendering import MessageRenderer
from stratos_gateway.generation.fanout import note_continuation
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.openai.chat_events import EventRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.responses.rendering import ResponseRenderer
from stratos_gateway.responses.requests import parse_response
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.deltas import delta

TEXT = "naïve 東京 🙂 and a STO, then a STOP that ends it"
OPEN = frozenset({FinishReason.EXHAUSTED})


@cache
def ids() -> list[int]:
    return shipped_tokenizer().encode_plain(TEXT)


def make() -> ChoiceJournal:
    return ChoiceJournal(0, Detokenizer(shipped_tokenizer()), StopMatcher(("STOP",)), OPEN)


def taken(journal: ChoiceJournal) -> ChoiceChunk:
    chunk = journal.take()
    assert chunk is not None
    return chunk


def two_parts(cut: int) -> tuple[ChoiceChunk, ChoiceChunk]:
    first, rest = make(), make()
    first.accept(delta(0, ids()[:cut], finish_reason=FinishReason.EXHAUSTED))
    rest.resume(left_open(0, first.ids, is_open=first.is_open))
    rest.accept(delta(cut, ids()[cut:], finish_reason=FinishReason.LENGTH))
    return taken(first), taken(rest)


def whole() -> ChoiceChunk:
    journal = make()
    journal.accept(delta(0, ids(), finish_reason=FinishReason.LENGTH))
    return taken(journal)


def test_a_text_that_was_cut_anywhere_goes_on_to_the_character() -> None:
    """Also within a character of several tokens, and within what may become a stop string."""
    expected, stopped_at = whole(), 0
    assert (expected.text, expected.finish_reason) == (TEXT.partition("STOP")[0], "stop")
    for cut in range(1, len(expected.token_ids)):
        first, rest = two_parts(cut)
        assert first.text + rest.text == expected.text, cut
        assert [*first.token_ids, *rest.token_ids] == expected.token_ids
        assert (first.finish_reason, rest.finish_reason) == ("length", "stop")
        assert rest.is_first
        stopped_at += first.text != shipped_tokenizer().decode(ids()[:cut])
    assert stopped_at, "some cut falls within what is held back"


def test_an_end_that_is_none_of_those_shows_everything() -> None:
    journal = make()
    journal.accept(delta(0, ids()[:-6], finish_reason=FinishReason.LENGTH))
    assert not journal.is_open
    assert taken(journal).text == shipped_tokenizer().decode(ids()[:-6])


def test_what_is_held_back_is_shown_where_the_token_would_be_too_long() -> None:
    num_held = 0
    for cut in range(1, len(whole().token_ids)):
        journal = make()
        journal.accept(delta(0, ids()[:cut], finish_reason=FinishReason.EXHAUSTED))
        chunk, expected = taken(journal), shipped_tokenizer().decode(ids()[:cut])
        num_held += chunk.text != expected
        assert not note_continuation([chunk], [[journal]], lambda choices: "")
        assert (chunk.text, chunk.finish_reason, chunk.is_open, chunk.continuation) == (expected, "length", False, "")
        assert journal.take() is None
    assert num_held, "some cut falls within what is held back"


def test_the_token_comes_with_the_last_chunk_of_all_choices() -> None:
    one, two = make(), make()
    seen: list[Any] = []

    def token_of(choices: Any) -> str:
        seen.append(choices)
        return "cont_x"

    one.accept(delta(0, ids()[:4], finish_reason=FinishReason.EXHAUSTED))
    first = [taken(one)]
    assert not note_continuation(first, [[one, two]], token_of)
    two.accept(delta(0, ids()[:3], finish_reason=FinishReason.LENGTH))
    last = [taken(two)]
    assert note_continuation(last, [[one, two]], token_of)
    assert (first[0].continuation, last[0].continuation) == ("", "cont_x")
    assert [[(c.emitted_ids, c.finished) for c in choices] for choices in seen[0]] == [
        [(tuple(ids()[:4]), False), ((), True)]
    ]


def test_an_answer_that_has_ended_whole_has_none() -> None:
    journal = make()
    journal.accept(delta(0, ids()[:4], finish_reason=FinishReason.LENGTH))
    assert not note_continuation([taken(journal)], [[journal]], lambda choices: "cont_x")


THOUGHT = "<think>\nHm, so.\n</think>\n\nYes, <b>so</b>."
SHAPE = OutputShape(reasoning=ReasoningTags("<think>", "</think>"))


def rendered(kind: str, pieces: list[ChoiceChunk], prior: str = "") -> tuple[str, str]:
    """Reasoning and text of an answer."""
    answer = Answer(
        id="a-1", created=1, model="base", num_logprobs=None, num_prompt_logprobs=None, echoes_logprobs=False,
        return_token_ids=False, include_usage=False, prompts=((1,),), num_choices=1, shape=SHAPE,
        tool_mode=ToolMode.NONE, prior_texts=(prior,) if prior else (),
    )  # fmt: skip
    if kind == "chat":
        [choice] = EventRenderer(answer, shipped_tokenizer()).body(pieces, Usage(1, 1))["choices"]
        return choice["message"]["reasoning"] or "", choice["message"]["content"]
    if kind == "message":
        blocks = MessageRenderer(answer, shipped_tokenizer()).body(pieces, Usage(1, 1))["content"]
        texts = [(block["type"], block.get("thinking", block.get("text"))) for block in blocks]
        return tuple("".join(t for name, t in texts if name == wanted) for wanted in ("thinking", "text"))  # type: ignore[return-value]
    body = parse_response({"model": "base", "input": "x"}, 256)
    items = ResponseRenderer(answer, shipped_tokenizer(), body).body(pieces, Usage(1, 1))["output"]
    parts = [(item["type"], item["content"][0]["text"]) for item in items]
    return tuple("".join(t for name, t in parts if name == wanted) for wanted in ("reasoning", "message"))  # type: ignore[return-value]


def piece(text: str, *, is_open: bool) -> ChoiceChunk:
    return ChoiceChunk(0, text, [7], [], "length", is_first=True, is_open=is_open)


@pytest.mark.parametrize("kind", ["chat", "message", "response"])
def test_reasoning_goes_on_where_it_was_cut(kind: str) -> None:
    expected = rendered(kind, [piece(THOUGHT, is_open=False)])
    assert expected == ("Hm, so.", "Yes, <b>so</b>.")
    for cut in range(1, len(THOUGHT)):
        first = rendered(kind, [piece(THOUGHT[:cut], is_open=True)])
        rest = rendered(kind, [piece(THOUGHT[cut:], is_open=False)], prior=THOUGHT[:cut])
        assert (first[0] + rest[0], first[1] + rest[1]) == expected, cut
