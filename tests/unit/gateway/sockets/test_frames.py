"""Frames: every cut of their bytes gives the same messages, and every bound is held by the head alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos_gateway.sockets.frames import (
    CLOSE,
    MAX_FRAMES_AT_ONCE,
    PING,
    TEXT,
    Control,
    FrameFault,
    FrameReader,
    accept_key,
    close_payload,
    encode_frame,
)
from tests.support.examples import examples
from tests.support.worlds.socket_client import client_frame


def read(pieces: list[bytes], max_bytes: int = 1 << 20) -> list[str | Control]:
    reader = FrameReader(max_bytes)
    found = [one for piece in pieces for one in reader.feed(piece)]
    assert reader.is_between
    return found


@settings(max_examples=examples(100))
@given(st.lists(st.text(max_size=300), max_size=4), st.data())
def test_every_cut_gives_the_same_messages(texts: list[str], data: st.DataObject) -> None:
    wire = b""
    for text in texts:
        encoded = text.encode()
        cut = data.draw(st.integers(0, len(encoded)))
        wire += (
            client_frame(encoded[:cut], is_last=False) + client_frame(b"beat", PING) + client_frame(encoded[cut:], 0)
        )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    pieces = [wire[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    found = read(pieces)
    assert [one for one in found if isinstance(one, str)] == texts
    assert [one for one in found if isinstance(one, Control)] == [Control(PING, b"beat")] * len(texts)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536])
def test_lengths_of_all_forms_are_read_and_written(size: int) -> None:
    assert read([client_frame(b"x" * size)]) == ["x" * size]
    written = encode_frame(TEXT, b"x" * size)
    assert written.endswith(b"x" * size)
    assert len(written) - size == (2 if size < 126 else 4 if size < 65_536 else 10)


def test_a_message_that_is_too_long_is_refused_by_its_head() -> None:
    reader = FrameReader(1000)
    with pytest.raises(FrameFault) as caught:
        reader.feed(client_frame(b"x" * 1001)[:4])
    assert caught.value.code == 1009
    assert read([client_frame(b"x" * 600, is_last=False), client_frame(b"x" * 400, 0)], 1000) == ["x" * 1000]


def test_the_handshake_and_the_close_are_those_of_the_standard() -> None:
    assert accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert close_payload(1009, "x" * 200) == b"\x03\xf1" + b"x" * 123
    assert read([client_frame(close_payload(1000, "bye"), CLOSE)]) == [Control(CLOSE, b"\x03\xe8bye")]


@pytest.mark.parametrize("frame", [client_frame(b"", PING), client_frame(b"", 0, is_last=False)])
def test_a_flood_of_tiny_frames_is_read_to_a_bound(frame: bytes) -> None:
    reader = FrameReader(1000)
    reader.feed(client_frame(b"x", is_last=False))
    with pytest.raises(FrameFault) as caught:
        reader.feed(frame * (MAX_FRAMES_AT_ONCE + 1))
    assert caught.value.code == 1008
