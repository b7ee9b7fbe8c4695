"""Forms in pieces: every cut of a body gives the same parts."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from stratos.common.errors import BadRequest
from stratos_gateway.files.multipart import MAX_PARTS, MultipartReader, PartBegin, PartData

TYPE = "multipart/form-data; boundary=xyz"
BODY = (
    b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\none\r\n--xy\r\ntwo\n\r\n--xyz--\r\n"
)


def parts_of(reader: MultipartReader, *pieces: bytes) -> list[tuple[str, str | None, bytes]]:
    found: list[tuple[str, str | None, bytes]] = []
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, PartBegin):
                found.append((event.name, event.filename, b""))
            elif isinstance(event, PartData):
                found[-1] = (*found[-1][:2], found[-1][2] + event.data)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64, 1000])
def test_a_form_is_read_however_it_is_cut(size: int) -> None:
    reader = MultipartReader(TYPE)
    found = parts_of(reader, *(BODY[at : at + size] for at in range(0, len(BODY), size)))
    assert found == [("purpose", None, b"batch"), ("file", 'a "b".jsonl', b"one\r\n--xy\r\ntwo\n")]
    assert reader.is_whole


def test_a_form_that_is_cut_is_not_whole() -> None:
    reader = MultipartReader(TYPE)
    parts_of(reader, BODY[:-6])
    assert not reader.is_whole


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=", ""])
def test_another_type_is_refused(kind: str) -> None:
    with pytest.raises(BadRequest):
        MultipartReader(kind)


@pytest.mark.parametrize(
    "body",
    [
        b"no boundary at all",
        b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyz--",
        b'--xyz\r\nContent-Disposition: form-data; filename="x"\r\n\r\nx\r\n--xyz--',
        b'--xyz\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n--xyz--',
        b"--xyz\r\n" + b"x" * 10_000,
        b'--xyz\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (MAX_PARTS + 1),
    ],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parts_of(MultipartReader(TYPE), body)


def test_what_follows_the_last_boundary_is_not_kept() -> None:
    reader, more = MultipartReader(TYPE), bytes(1_000_000)
    parts_of(reader, BODY)
    tracemalloc.start()
    try:
        assert parts_of(reader, *[more] * 20) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_headers_of_one_long_word_take_no_time() -> None:
    """A search holds the interpreter's lock, and every stream of the gateway with it, to its end."""
    head = b'--xyz\r\nContent-Disposition: form-data; name="a"; ' + b"x" * 8000 + b"\r\n\r\n"
    began_s = time.thread_time()
    assert parts_of(MultipartReader(TYPE), head) == [("a", None, b"")]
    assert time.thread_time() - began_s < 0.02
