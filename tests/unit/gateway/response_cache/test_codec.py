"""Kept answers as bytes: all of it comes back, and what another version wrote is no answer."""

from __future__ import annotations

import json
import math

import pytest

from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry
from stratos_gateway.response_cache.cache import KeptAnswer, KeptPrompt
from stratos_gateway.response_cache.codec import decode_answer, encode_answer

POSITION = PositionLogprobs(TokenLogprob(7, -0.1234567890123456789, 2), (TokenLogprob(5, -math.inf, 1),))
ANSWER = KeptAnswer(
    chunks=(
        ChoiceChunk(0, "ein \u00e9 \U0001f600\n", [7, 8], [TokenEntry(POSITION, 3)], "stop", True, 1, (POSITION,)),
        ChoiceChunk(1, "", [], [], None, False),
    ),
    prompts=(KeptPrompt(num_prompt_tokens=3, num_cached_tokens=2, num_output_tokens=1),),
)


def test_an_answer_comes_back_whole() -> None:
    assert decode_answer(encode_answer(ANSWER)) == ANSWER


@pytest.mark.parametrize("change", [{"format": 1}, {"chunks": [{}]}, {"prompts": None}, {"chunks": [{"new": 1}]}])
def test_what_another_version_wrote_is_no_answer(change: dict[str, object]) -> None:
    value = {**json.loads(encode_answer(ANSWER)), **change}
    assert decode_answer(json.dumps(value).encode()) is None
    assert decode_answer(b"\x00") is None
