"""Events from templates have the bytes that the renderer's own events have."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from stratos.text.output.parser import OutputShape, ReasoningTags
from stratos_gateway.http.sse import encode_events
from stratos_gateway.openai.answers import ChatRenderer, ChoicesRenderer, CompletionRenderer
from stratos_gateway.openai.chat_events import EventRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Answer
from tests.support.reference.shipped_model import shipped_tokenizer

ANSWER = Answer(
    id="x", created=1, model='"text":"\\u0000"', num_logprobs=None, num_prompt_logprobs=None, echoes_logprobs=False,
    return_token_ids=False, include_usage=False, prompts=[[5]], num_choices=2, shape=OutputShape(),
)  # fmt: skip
TEXTS = ("", "a", 'quote " and \\ and \n', "ä\U0001f600", "\0", "<think>", "100 %s %b")


@pytest.mark.parametrize("kind", [ChatRenderer, CompletionRenderer, EventRenderer])
@pytest.mark.parametrize("changes", [{}, {"include_usage": True}, {"return_token_ids": True}, {"num_logprobs": 1}])
def test_bytes_are_those_of_the_events(kind: type[ChoicesRenderer], changes: dict[str, int]) -> None:
    answer = replace(ANSWER, **changes)
    quick, renderer = kind(answer, shipped_tokenizer()), kind(answer, shipped_tokenizer())
    for number, (text, index) in enumerate(itertools.product((*TEXTS, *TEXTS), (0, 1))):
        chunks = [ChoiceChunk(index, text, [7], [], None, is_first=number < 2)]
        assert quick.stream_part(chunks) == encode_events(renderer.events(chunks))
    ends = [ChoiceChunk(index, "end", [7], [], "stop", is_first=False) for index in (1, 0)]
    assert quick.stream_part(ends) == encode_events(renderer.events(ends))


def test_reasoning_that_is_to_be_hidden_is_counted_alone() -> None:
    shape = OutputShape(reasoning=ReasoningTags("<think>", "</think>"))
    answer = replace(ANSWER, shape=shape, hides_reasoning=True, num_choices=1)
    ids = shipped_tokenizer().encode_plain("<think>Hm.</think>Yes.")
    whole = ChoiceChunk(0, "<think>Hm.</think>Yes.", ids, [], "stop", is_first=True)
    body = EventRenderer(answer, shipped_tokenizer()).body([whole], Usage(1, len(ids), 0))
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("Yes.", None, None)
    assert 0 < body["usage"]["completion_tokens_details"]["reasoning_tokens"] < len(ids)
    streamed = EventRenderer(answer, shipped_tokenizer())
    texts = ("<think>", "Hm.", "</think>Yes.")
    parts = [ChoiceChunk(0, text, [7], [], None, is_first=text == "<think>") for text in texts]
    told = b"".join(streamed.stream_part([part]) for part in parts)
    assert b"Yes." in told
    assert b"Hm." not in told
