"""Records of streams there and back, and ids of events that are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.errors import BadRequest
from stratos.core.adapter import AdapterRef
from stratos.core.requests.records import FinishReason, PositionLogprobs, TokenLogprob
from stratos_gateway.openai.rendering import AnswerIdentity
from stratos_gateway.streams.asking import derived_seed, is_stream_id, stream_id
from stratos_gateway.streams.codec import (
    Piece,
    StreamHead,
    add_piece,
    add_tokens,
    decode_block,
    decode_head,
    encode_block,
    encode_head,
)
from stratos_gateway.streams.cursor import parse_cursor

CAUSES = (None, FinishReason.STOP, FinishReason.LENGTH, FinishReason.GRAMMAR, FinishReason.EXHAUSTED)
KEY = b"k" * 32
TAG = "0123456789ab"


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    ids = draw(st.lists(st.integers(0, 300_000), max_size=5))
    ends = draw(st.booleans())
    return Piece(draw(st.integers(0, 5)), ids, ends, draw(st.sampled_from(CAUSES)) if ends else None)


TOKENS = st.builds(
    TokenLogprob, st.integers(0, 300_000), st.floats(max_value=0.0, width=32, allow_nan=False), st.integers(1, 300_000)
)
POSITIONS = st.builds(PositionLogprobs, TOKENS, st.lists(TOKENS, max_size=3).map(tuple))
PARTS = ["logprobs", "prompt"]


@given(
    st.lists(st.tuples(pieces(), st.lists(POSITIONS, max_size=5).map(tuple))),
    st.sets(st.sampled_from(PARTS), min_size=1),
)
def test_log_probabilities_come_back_bit_by_bit(
    found: list[tuple[Piece, tuple[PositionLogprobs, ...]]], parts: set[str]
) -> None:
    written, buffer = [replace(piece, **dict.fromkeys(parts, logprobs)) for piece, logprobs in found], bytearray()
    told = {f"has_{part}": True for part in parts}
    for piece in written:
        add_piece(buffer, piece, 6, **told)
    content = encode_block((), 0, bytes(buffer))
    assert list(decode_block(content, 0, 6, **told).pieces) == written
    if found and found[-1][1]:
        with pytest.raises(ValueError, match="not a block"):
            decode_block(content[:-1], 0, 6, **told)


@given(st.lists(pieces()), st.lists(st.integers(0, 9999), min_size=3, max_size=3), st.integers(0, 1 << 40))
def test_a_block_is_what_was_written(written: list[Piece], cached: list[int], ended: int) -> None:
    buffer = bytearray()
    for piece in written:
        add_piece(buffer, piece, 6)
    found = decode_block(encode_block(cached, ended, bytes(buffer)), 3, 6)
    assert (list(found.num_cached), found.ended_unix_s, list(found.pieces)) == (cached, ended, written)


@pytest.mark.parametrize("largest", [0x1F_FFFF, 0x20_0000, 0xFFFF_FFFF])
def test_tokens_alone_are_read_as_pieces_are(largest: int) -> None:
    ids = [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x5555, 0x15_5555, largest]
    quick, slow = bytearray(b"\0"), bytearray(b"\0")
    add_tokens(quick, ids)
    for token_id in ids:
        add_piece(slow, Piece(0, [token_id]), 1)
    assert decode_block(bytes(quick), 0, 1) == decode_block(bytes(slow), 0, 1)
    assert largest > 0x1F_FFFF or len(quick) == 1 + 4 * len(ids)


def test_a_token_takes_less_than_four_bytes() -> None:
    buffer = bytearray()
    for token_id in range(100_000, 101_000):
        add_piece(buffer, Piece(0, [token_id]), 1)
    assert len(buffer) == 4000  # three for a token of a large vocabulary, one for its piece


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x00\x00\x02", b"\x00\x00\x01\x09"])
def test_a_cut_block_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a block"):
        decode_block(content, 1, 1)


def test_a_head_is_what_was_written() -> None:
    identity = AnswerIdentity(
        answer_id="cmpl-1",
        created=5,
        seed=(1 << 63) - 1,
        prompts=((1, 2), (3,)),
        model_digest="m",
        adapter=AdapterRef(digest="d", uri="u"),
        arrived_unix_ms=7,
        request_ids=("gen-1", "gen-2"),
    )
    head = StreamHead(path="/v1/completions", body='{"prompt":"é"}'.encode(), identity=identity)
    assert decode_head(encode_head(head)) == head
    assert decode_head(b"") is None
    assert decode_head(b"noise") is None


@pytest.mark.parametrize(
    "text",
    ["x", TAG, f"{TAG}.", f"{TAG}.1", f"{TAG}.1.2-3", f"{TAG}.-1.2", f"{TAG}.1.2.0-1", f"{TAG}.1.2.1-1-1",
     f"{TAG}.1.2.e", "ffffffffffff.1.2", f"{TAG}.1.{'9' * 10}", f"{TAG}.z.1", f"{TAG}.1.2\n"],
)  # fmt: skip
def test_ids_that_no_event_has_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_cursor(text, TAG, 1)


def test_a_cursor_says_where_chunks_end() -> None:
    cursor = parse_cursor(f"{TAG}.9.4-0.1-3-2", TAG, 2)
    assert (cursor.num_events, cursor.seen, cursor.part) == (9, (4, 0), (1, 3, 2))
    assert (cursor.cuts(0), cursor.cuts(1)) == ([4], [3])
    assert parse_cursor(f"{TAG}.z", TAG, 2).is_whole


def test_ids_of_streams_are_those_of_one_tenant() -> None:
    first, second = stream_id(KEY, "a"), stream_id(KEY, "b")
    assert first == stream_id(KEY, "a") != second
    assert stream_id(KEY, "") != stream_id(KEY, "")
    assert is_stream_id(KEY, first)
    assert not is_stream_id(b"x" * 32, first)
    assert not any(is_stream_id(KEY, text) for text in ("", "strm_", first + "0", first[:-1], "é" * 37, first[:-8]))
    assert 0 <= derived_seed(KEY, "a") < 1 << 63
