"""What of a stream waits to be recorded."""

from __future__ import annotations

import pytest

from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams import owned
from stratos_gateway.streams.codec import add_tokens, decode_block
from stratos_gateway.streams.owned import OwnedStream, Ownership


def chunk(token_id: int) -> ChoiceChunk:
    return ChoiceChunk(index=0, text="", token_ids=[token_id], entries=[], finish_reason=None, is_first=False)


def test_tokens_are_packed_as_they_come_so_that_a_write_after_an_outage_has_few_to_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[int] = []

    def add(buffer: bytearray, token_ids: list[int]) -> None:
        packed.append(len(token_ids))
        add_tokens(buffer, token_ids)

    monkeypatch.setattr(owned, "add_tokens", add)
    stream = OwnedStream("t", "s", Ownership(), 1, lambda error: None)
    stream.num_cached = lambda: [0]
    ids = list(range(1000, 2000))
    for token_id in ids:
        stream.note(chunk(token_id))
    num_before = len(packed)
    block = decode_block(stream.write().content, 1, 1)
    assert [piece.ids for piece in block.pieces] == [[token_id] for token_id in ids]
    assert (len(packed) - num_before, max(packed)) == (1, 64)
