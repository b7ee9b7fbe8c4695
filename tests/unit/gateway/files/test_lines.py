"""Lines of a batch: what is refused is named by its line, and pieces of work begin where lines do."""

from __future__ import annotations

import tracemalloc
from codecs import BOM_UTF8
from typing import Any

import orjson
import pytest

from stratos.common.errors import BadRequest
from stratos_gateway.files.lines import MAX_LINE_BYTES, SLICE_LINES, LineCheck


def line(number: int, **more: Any) -> bytes:
    value = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": {"model": "base"}, **more}
    return orjson.dumps(value) + b"\n"


def checked(content: bytes, size: int = 1000, max_lines: int = 10_000) -> LineCheck:
    check = LineCheck(max_lines)
    for at in range(0, len(content), size):
        check.feed(content[at : at + size])
    check.finish()
    return check


@pytest.mark.parametrize("size", [7, 100, 10_000])
def test_pieces_of_work_begin_at_lines(size: int) -> None:
    content = b"".join(line(number) for number in range(3 * SLICE_LINES + 1))[:-1]
    found = checked(content, size)
    slices = orjson.loads(found.index)
    assert found.facts == {"lines": 3 * SLICE_LINES + 1, "urls": ["/v1/completions"], "models": ["base"]}
    assert [count for _, count in slices] == [SLICE_LINES] * 3 + [1]
    for at, (offset, _) in enumerate(slices):
        assert orjson.loads(content[offset:].split(b"\n")[0])["custom_id"] == f"c{at * SLICE_LINES}"


def test_a_piece_of_work_has_few_lines_where_they_are_long() -> None:
    content = b"".join(line(number, body={"model": "base", "prompt": "x" * 300_000}) for number in range(4))
    assert [count for _, count in orjson.loads(checked(content).index)] == [2, 2]


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (b"{\n", "not JSON"),
        (b"\n", "blank"),
        (b" \r\n", "blank"),
        (BOM_UTF8 + line(2), "a byte order mark, which is not JSON"),
        (b"[]\n", "an object"),
        (line(2, more=1), "an object of"),
        (line(1), "custom_id is that of an earlier line"),
        (line(2, custom_id=5), "custom_id"),
        (line(2, custom_id="x" * 300), "custom_id"),
        (line(2, method="GET"), "method"),
        (line(2, url="/v1/batches"), "url"),
        (line(2, url=["/v1/completions"]), "url"),
        (line(2, body="x"), "body must be an object"),
        (line(2, body={"stream": True}), "stream"),
        (line(2, body={"models": ["base", "small"]}), "one model alone"),
        (line(2, body={"model": 5}), "model"),
        (b"x" * (MAX_LINE_BYTES + 10), "longer"),
        (b"x" * (MAX_LINE_BYTES + 10) + b"\n", "longer"),
        (b'{"a":' * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_request_is_named(second: bytes, what: str) -> None:
    with pytest.raises(BadRequest, match=rf"line 2: .*{what}") as error:
        checked(line(1) + second, 100_000)
    assert (error.value.code, error.value.param) == ("invalid_file", "file")


def test_a_file_has_lines_and_not_too_many() -> None:
    with pytest.raises(BadRequest, match="no line"):
        checked(b"")
    with pytest.raises(BadRequest, match="more than 2 lines"):
        checked(line(1) + line(2) + line(3), max_lines=2)
    with pytest.raises(BadRequest, match="16 models"):
        checked(b"".join(line(number, body={"model": f"m{number}"}) for number in range(17)))


def test_ids_of_a_long_file_are_compared_in_little_memory() -> None:
    """A million ids, sorted at once, would take 44 MB, and the interpreter's lock for most of a second."""
    check = LineCheck(10**6)
    check.feed(b"".join(line(number) for number in range(30_000)))
    tracemalloc.start()
    try:
        check.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 15 * 30_000
