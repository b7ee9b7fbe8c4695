"""The law of the parsers: pieces of a text give the events of the whole text, byte for byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.text.output.events import CallArguments, CallBegin, CallEnd, ReasoningDelta, TextDelta
from stratos.text.output.parser import OutputParser, OutputShape, ReasoningTags
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_4_JSON
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER
from tests.support.examples import IS_THOROUGH, examples
from tests.support.reference.call_transcripts import TRANSCRIPTS, CallTranscript
from tests.support.reference.output_events import calls_of, events_of, text_of

NEAR, COARSE = (10**9, 1) if IS_THOROUGH else (15, 97)
"""Two cuts within one mark, of at most 16 letters, are no further apart; others have the second at some places alone.
A thorough run has all."""
TAGS = ReasoningTags("<think>", "</think>")
HERMES_SHAPE = OutputShape(syntax=HERMES, reasoning=TAGS)
BROKEN = (
    "a <tool_call> is not JSON </tool_call> b",
    '<tool_call>\n{"name": "f", "arguments": {"a": "unfin',
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}, 5}</tool_call> rest',
    '<tool_call>{"name": 5}</tool_call>',
    '<tool_call>{"arguments": {"a": 1}}</tool_call> <tool_call>{"name": "g"}',
    '<tool_call>{"name": "' + "n" * 2000 + '"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": ' + "1" * 2000 + "}</tool_call>",
    '<tool_call>{"name": "f\\u00',
    "<think>\nnever ends <tool_call>",
    "  <thin",
    "<think></think>",
    " blanks  at the end \n ",
    "<tool_call><tool_call></tool_call>",
)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.name)
def test_calls_come_back_byte_for_byte(transcript: CallTranscript) -> None:
    events = events_of(transcript.shape, [transcript.output])
    assert calls_of(events) == list(transcript.calls)
    assert text_of(events) == transcript.text
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == transcript.reasoning
    assert [e.is_complete for e in events if isinstance(e, CallEnd)] == [True] * len(transcript.calls)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.name)
def test_every_one_and_two_cut_split_gives_the_same(transcript: CallTranscript) -> None:
    text, shape = transcript.output, transcript.shape
    whole = events_of(shape, [text])
    for begin in range(len(text) + 1):
        for end in range(begin, len(text) + 1):
            if end - begin <= NEAR or end % COARSE == 0:
                assert events_of(shape, [text[:begin], text[begin:end], text[end:]]) == whole, (begin, end)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.name)
def test_an_output_that_breaks_off_gives_the_same_letter_by_letter(transcript: CallTranscript) -> None:
    for length in range(len(transcript.output)):
        text = transcript.output[:length]
        assert events_of(transcript.shape, list(text)) == events_of(transcript.shape, [text]), length


@pytest.mark.parametrize("text", BROKEN)
def test_broken_outputs_give_the_same_in_every_split(text: str) -> None:
    whole = events_of(HERMES_SHAPE, [text])
    assert events_of(HERMES_SHAPE, list(text)) == whole
    step = 1 if len(text) < 200 else 97
    for begin in range(0, len(text) + 1, step):
        for end in range(begin, len(text) + 1, step):
            assert events_of(HERMES_SHAPE, [text[:begin], text[begin:end], text[end:]]) == whole, (begin, end)


PARTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f"', ', "arguments": {"a": ', '"x"', "}}", "}",
    "\n", " ", "text", "<tool", "\\", '"', "{", "]",
]  # fmt: skip


@settings(max_examples=examples(600))
@given(st.sampled_from(TRANSCRIPTS), st.lists(st.integers(0, 200), max_size=5), st.data())
def test_any_text_in_random_deltas_gives_the_same(
    transcript: CallTranscript, cuts: list[int], data: st.DataObject
) -> None:
    """Parts of a transcript in another order are what a model that errs may write."""
    shape, output = transcript.shape, transcript.output
    places = sorted({0, len(output), *(cut % (len(output) + 1) for cut in cuts)})
    parts = [output[begin:end] for begin, end in itertools.pairwise(places)]
    text = "".join(data.draw(st.permutations(parts)))
    pieces, left = [], text
    while left:
        size = data.draw(st.integers(1, 9))
        pieces.append(left[:size])
        left = left[size:]
    assert events_of(shape, pieces) == events_of(shape, [text])


@given(st.lists(st.sampled_from(PARTS), max_size=14), st.data())
def test_any_parts_in_random_deltas_give_the_same(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    pieces, left = [], text
    while left:
        size = data.draw(st.integers(1, 9))
        pieces.append(left[:size])
        left = left[size:]
    assert events_of(HERMES_SHAPE, pieces) == events_of(HERMES_SHAPE, [text])


MARKS_TEXT = LLAMA_4_JSON
"""Its marks stand around text, too, and are none of it."""
SYNTAXES = {t.syntax.name: t.syntax for t in TRANSCRIPTS if not t.shape.frame and t.syntax is not MARKS_TEXT}


@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=14))
def test_nothing_of_a_text_without_a_call_is_lost(syntax: CallSyntax, parts: list[str]) -> None:
    """Blanks behind a mark that begins no call included."""
    texts = ["".join(parts), *(f"a {mark}{end}" for mark in syntax.marks for end in ("  ", "\n\nb", "]\n\n <b"))]
    for text in texts:
        events = events_of(OutputShape(syntax=syntax), [text])
        if not calls_of(events):
            assert text_of(events) == text


def test_plain_text_never_waits() -> None:
    parser = OutputParser(HERMES_SHAPE)
    for piece in ("Hello", " world", "! 1 < 2", " and more"):
        assert "".join(event.text for event in parser.feed(piece) if isinstance(event, TextDelta)) == piece


def test_names_and_fragments_leave_as_soon_as_they_are_known() -> None:
    parser = OutputParser(HERMES_SHAPE)
    assert parser.feed('<tool_call>\n{"name": "get_') == []
    assert parser.feed('weather"') == [CallBegin(0, "get_weather")]
    assert parser.feed(', "arguments": {"ci') == [CallArguments(0, '{"ci')]
    assert parser.feed('ty": "P') == [CallArguments(0, 'ty": "P')]
    assert parser.feed('aris"}}') == [CallArguments(0, 'aris"}'), CallEnd(0, is_complete=True)]


@pytest.mark.parametrize(
    ("output", "is_inside", "reasoning", "text"),
    [
        ("<think>\nfirst\n</think>\n\nanswer", False, "first", "answer"),
        ("first\n</think>\n\nanswer", True, "first", "answer"),
        ("<think>first</think>answer", True, "first", "answer"),
        ("answer <think> no</think>", False, "", "answer <think> no</think>"),
        ("<think>\n\n</think>\n\nanswer", False, "", "answer"),
        ("<think>cut short", False, "cut short", ""),
    ],
)
def test_reasoning_is_told_from_the_answer(output: str, is_inside: bool, reasoning: str, text: str) -> None:
    shape = OutputShape(reasoning=TAGS, is_reasoning=is_inside)
    for pieces in ([output], list(output)):
        events = events_of(shape, pieces)
        assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == reasoning
        assert text_of(events) == text


@pytest.mark.parametrize(
    ("syntax", "output"),
    [
        (PYTHONIC, "[f(a=" + "[" * 5000 + "]" * 5000 + ")]"),
        (PYTHONIC, "[f(a=b'x')]"),
        (GEMMA, "<|tool_call>call:f{a:" + "[" * 5000),
        (GEMMA, "<|tool_call>call:f{" + "x" * 5000),
        (QWEN_CODER, "<function=f><parameter=a>" + "[" * 100_000),
        (HERMES, '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000),
        (HARMONY, " to=functions.f<|message|>" + "[" * 100_000),
    ],
)
def test_hostile_calls_are_not_complete(syntax: CallSyntax, output: str) -> None:
    events = events_of(OutputShape(syntax=syntax, frame=syntax.frame), [output])
    assert [e.is_complete for e in events if isinstance(e, CallEnd)] == [False]


def test_values_that_are_no_json_are_texts() -> None:
    output = "<function=f><parameter=a>NaN</parameter><parameter=b>-Infinity</parameter></function>"
    [(_, arguments)] = calls_of(events_of(OutputShape(syntax=QWEN_CODER), [output]))
    assert arguments == '{"a": "NaN", "b": "-Infinity"}'


def test_the_law_would_find_a_parser_of_pieces() -> None:
    """Control: a reader that looks at each piece by itself loses calls that a cut goes through."""
    text = TRANSCRIPTS[0].output
    halves = [text[:5], text[5:]]
    alone = [event for half in halves for event in events_of(HERMES_SHAPE, [half])]
    assert alone != events_of(HERMES_SHAPE, [text])


@pytest.mark.parametrize(
    ("syntax", "output", "call"),
    [
        (HERMES, r'<tool_call>{"name": "f\ud800", "arguments": {}}</tool_call>', ("f\ufffd", "{}")),
        (HERMES, r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\udfff\"}"}</tool_call>', ("f", '{"a": "\ufffd"}')),
        (HERMES, r'<tool_call>{"name": "f", "arguments": "[\"\ud83d\ude00\"]"}</tool_call>', ("f", '["\U0001f600"]')),
        (PYTHONIC, r"[f(a='\ud800')]", ("f", '{"a": "\ufffd"}')),
        (PYTHONIC, r"[f(a='\ud83d\ude00')]", ("f", '{"a": "\U0001f600"}')),
    ],
)
def test_half_a_character_that_escapes_spell_is_one_that_can_be_sent(
    syntax: CallSyntax, output: str, call: tuple[str, str]
) -> None:
    assert calls_of(events_of(OutputShape(syntax=syntax), [output])) == [call]
