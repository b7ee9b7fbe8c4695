"""An upload on its way: its form's fields, and its file, checked and sealed piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import orjson

from stratos.common.errors import BadRequest, RequestTooLarge
from stratos.store.sealed.file_writer import FileWriter
from stratos_gateway.files.lines import LineCheck
from stratos_gateway.files.multipart import MultipartReader, PartBegin, PartData, PartEvent

PURPOSE = "batch"
_MAX_FIELD_BYTES = 1024
_MAX_NAME_CHARS = 255
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)
MIN_KEPT_S = 3600


class Upload:
    """Reads one form, in any thread.

    Args:
        content_type: header of the request.
        writer: of the file.
        check: of its lines.
        max_bytes: of the file.
    """

    def __init__(self, content_type: str, writer: FileWriter, check: LineCheck, max_bytes: int) -> None:
        self._reader = MultipartReader(content_type)
        self._writer = writer
        self._check = check
        self._max_bytes = max_bytes
        self._fields: dict[str, bytes] = {}
        self._take: Callable[[bytes], None] = lambda data: None
        self._hash = hashlib.sha256()
        self.filename = ""

    def feed(self, data: bytes) -> None:
        """Take more of the body.

        Raises:
            BadRequest: it is no form, has a field that is not known, or a line of the file is no request.
            RequestTooLarge: the file is.
        """
        for event in self._reader.feed(data):
            self._on(event)

    def finish(self) -> float | None:
        """The form is whole: seconds that its file is kept, ``None`` where it does not say; raises like ``feed``."""
        if not self._reader.is_whole:
            raise BadRequest("the body is no form: it ends before its last boundary", code="invalid_form")
        self._check_purpose()
        if not self.filename:
            raise BadRequest("the form has no file", param="file")
        kept_s = self._kept_s()
        self._check.finish()
        self._writer.finish(self._check.index)
        return kept_s

    @property
    def content(self) -> bytes:
        """Fields of the form, and a hash of the file: an upload that comes again has the same."""
        fields = {name: value.hex() for name, value in self._fields.items()}
        return orjson.dumps([self.filename, fields, self._hash.hexdigest()], option=orjson.OPT_SORT_KEYS)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that the check of the file found."""
        return self._check.facts

    def _on(self, event: PartEvent) -> None:
        match event:
            case PartBegin(name, filename) if name == "file":
                if self.filename or not filename:
                    raise BadRequest("file must be one part with a filename", param="file")
                if "purpose" in self._fields:  # before its lines are refused, which are those of another purpose
                    self._check_purpose()
                self.filename, self._take = filename[:_MAX_NAME_CHARS], self._take_file
            case PartBegin(name):
                if name not in _FIELDS or name in self._fields:
                    raise BadRequest(f"{name[:100]} is not supported by this server", param=name[:100])
                self._fields[name] = b""
                self._take = lambda data: self._take_field(name, data)
            case PartData(data):
                self._take(data)

    def _check_purpose(self) -> None:
        if self._fields.get("purpose") != PURPOSE.encode():
            raise BadRequest(f"purpose: only {PURPOSE} is supported", param="purpose", code="unsupported_parameter")

    def _take_field(self, name: str, data: bytes) -> None:
        self._fields[name] += data
        if len(self._fields[name]) > _MAX_FIELD_BYTES:
            raise BadRequest(f"{name} is longer than {_MAX_FIELD_BYTES} bytes", param=name)

    def _take_file(self, data: bytes) -> None:
        if self._writer.num_bytes + len(data) > self._max_bytes:
            raise RequestTooLarge(f"the file is larger than {self._max_bytes} bytes", param="file")
        self._check.feed(data)
        self._writer.write(data)
        self._hash.update(data)

    def _kept_s(self) -> float | None:
        if _ANCHOR not in self._fields and _SECONDS not in self._fields:
            return None
        if self._fields.get(_ANCHOR) != b"created_at":
            raise BadRequest(f"{_ANCHOR} must be created_at", param=_ANCHOR)
        text = self._fields.get(_SECONDS, b"").decode("latin-1")
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= MIN_KEPT_S):
            raise BadRequest(f"{_SECONDS} must be a whole number from {MIN_KEPT_S}", param=_SECONDS)
        return float(text)
