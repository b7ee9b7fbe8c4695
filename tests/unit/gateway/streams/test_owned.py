"""What of a stream waits to be recorded."""

from __future__ import annotations

import pytest

from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams import owned
from stratos_gateway.streams.codec import add_tokens, decode_block
from stratos_gateway.streams.owned import OwnedStream, Ownership


def chunk(token_id: int) -> ChoiceChunk:
    return ChoiceChunk(index=0, text="", token_ids=[token_id], entries=[], finish_reason=None, is_first=False)


def test_tokens_that_wait_are_packed_each_time_that_redis_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def add(buffer: bytearray, token_ids: list[int]) -> None:
        packed.append(len(token_ids))
        add_tokens(buffer, token_ids)

    monkeypatch.setattr(owned, "add_tokens", add)
    stream = OwnedStream("t", "s", Ownership(), 1, lambda error: None)
    stream.num_cached = lambda: [0]
    ids = list(range(1000, 2000))
    for place, token_id in enumerate(ids, 1):
        stream.note(chunk(token_id))
        if place % 30 == 0:
            stream.pack()
    num_before = len(packed)
    block = decode_block(stream.write().content, 1, 1)
    assert [piece.ids for piece in block.pieces] == [[token_id] for token_id in ids]
    assert (len(packed) - num_before, max(packed)) == (1, 30)
