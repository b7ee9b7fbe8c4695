"""The best of several choices are those with the highest mean log probability of a token."""

from __future__ import annotations

from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos_gateway.completion.forms import BestRenderer
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry, Usage
from stratos_gateway.openai.rendering import Answer
from stratos_gateway.openai.requests import BestOf
from tests.support.reference.shipped_model import shipped_tokenizer


def chunk(index: int, *logprobs: float) -> ChoiceChunk:
    entries = [TokenEntry(PositionLogprobs(TokenLogprob(5, value, 1), ()), 0) for value in logprobs]
    return ChoiceChunk(index, f"choice {index}", [5] * len(logprobs), entries, "stop", is_first=True)


def shown(best: BestOf, chunks: list[ChoiceChunk]) -> list[tuple[int, str, bool]]:
    answer = Answer(
        id="cmpl-1",
        created=0,
        model="base",
        num_logprobs=0,
        num_prompt_logprobs=None,
        echoes_logprobs=False,
        return_token_ids=False,
        include_usage=False,
        prompts=[(5,), (6,)],
        num_choices=3,
    )
    choices = BestRenderer(answer, shipped_tokenizer(), (), best).body(chunks, Usage(2))["choices"]
    return [(choice["index"], choice["text"], choice["logprobs"] is not None) for choice in choices]


def test_long_choices_are_not_worse_for_their_length() -> None:
    chunks = [
        *(chunk(0, -3.0), chunk(1, -1.0, -1.0, -1.0, -1.0), chunk(2, -2.0, -2.0)),
        *(chunk(3), chunk(4, -0.5, -9.0), chunk(5, -0.1)),
    ]
    one = shown(BestOf(1, tells_logprobs=False), chunks)
    assert one == [(0, "choice 1", False), (1, "choice 5", False)]
    two = shown(BestOf(2, tells_logprobs=True), list(reversed(chunks)))
    assert two == [(0, "choice 1", True), (1, "choice 2", True), (2, "choice 5", True), (3, "choice 4", True)]
