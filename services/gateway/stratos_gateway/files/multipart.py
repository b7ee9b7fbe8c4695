"""Bodies of ``multipart/form-data`` read in pieces, with bounded memory (RFC 7578)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stratos.common.errors import BadRequest

MAX_HEADERS_BYTES = 8 * 1024
MAX_PARTS = 16
_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?boundary=(?:"([^"]{1,70})"|([^;\s"]{1,70}))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:\s*form-data\s*;(.*)$", re.IGNORECASE | re.MULTILINE)
# Nothing is tried twice: the interpreter's lock is held to the end of a search, which in headers of one long word
# would take time by the square of its length.
_PARAMETER = re.compile(rb'\b(\w++)="((?:[^"\\]|\\.)*+)"')


@dataclass(frozen=True, slots=True)
class PartBegin:
    """A part begins."""

    name: str
    filename: str | None
    """``None`` for a part that is no file."""


@dataclass(frozen=True, slots=True)
class PartData:
    """More of the part that began last."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The part that began last is whole."""


PartEvent = PartBegin | PartData | PartEnd


class MultipartReader:
    """Reads one body.

    Args:
        content_type: header of the request.

    Raises:
        BadRequest: it is another type, or has no boundary.
    """

    def __init__(self, content_type: str) -> None:
        found = _BOUNDARY.match(content_type.strip())
        if found is None:
            text = "the content type must be multipart/form-data with a boundary"
            raise BadRequest(text, code="unsupported_content_type")
        self._mark = b"\r\n--" + (found[1] or found[2]).encode()
        self._buffer = bytearray(b"\r\n")  # the first boundary begins the body
        self._in_part = False
        self._num_parts = 0
        self.is_whole = False
        """The last boundary has come."""

    def feed(self, data: bytes) -> Iterator[PartEvent]:
        """Events of more bytes; raises ``BadRequest`` for what is no form.

        What follows the last boundary says nothing, and is not kept.
        """
        if self.is_whole:
            return
        self._buffer += data
        while not self.is_whole:
            event = self._data() if self._in_part else self._begin()
            if event is None:
                break
            yield event

    def _data(self) -> PartEvent | None:
        """Content up to the next boundary; an end of it that may belong to one waits."""
        at = self._buffer.find(self._mark)
        if at == 0:
            self._in_part = False
            return PartEnd()
        most = at if at > 0 else len(self._buffer) - len(self._mark) + 1
        if most <= 0:
            return None
        content = bytes(self._buffer[:most])
        del self._buffer[:most]
        return PartData(content)

    def _begin(self) -> PartEvent | None:
        """The boundary and the headers of the next part."""
        mark = len(self._mark)
        if len(self._buffer) < mark + 2:
            return None
        if not self._buffer.startswith(self._mark):
            raise _malformed("a part does not begin with the boundary")
        if self._buffer[mark : mark + 2] == b"--":
            self.is_whole = True
            return None
        end = self._buffer.find(b"\r\n\r\n", mark)
        if end < 0 or end > mark + MAX_HEADERS_BYTES:
            if len(self._buffer) > mark + MAX_HEADERS_BYTES:
                raise _malformed("the headers of a part are too long")
            return None
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise _malformed(f"it has more than {MAX_PARTS} parts")
        begin = _part_begin(bytes(self._buffer[mark:end]))
        del self._buffer[: end + 4]
        self._in_part = True
        return begin


def _part_begin(headers: bytes) -> PartBegin:
    found = _DISPOSITION.search(headers.replace(b"\r\n", b"\n"))
    if found is None:
        raise _malformed("a part has no content-disposition: form-data")
    named = {name.lower(): value for name, value in _PARAMETER.findall(found[1])}
    try:
        values = {name: re.sub(rb"\\(.)", rb"\1", value).decode() for name, value in named.items()}
    except UnicodeDecodeError as error:
        raise _malformed("a name is not UTF-8") from error
    if b"name" not in values:
        raise _malformed("a part has no name")
    return PartBegin(values[b"name"], values.get(b"filename"))


def _malformed(what: str) -> BadRequest:
    return BadRequest(f"the body is no form: {what}", code="invalid_form")
