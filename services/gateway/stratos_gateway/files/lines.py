"""Lines of a batch: each one a request, checked while its file comes in; and where each piece of work begins.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "base", ...}}
"""

from __future__ import annotations

import hashlib
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Collection
from typing import Any

import orjson

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import MAX_MODEL_NAME_CHARS

BATCH_ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/moderations",
)
MAX_LINE_BYTES = 1024 * 1024
MAX_ID_CHARS = 256
SLICE_LINES, SLICE_BYTES = 50, 512 * 1024
"""Most lines of one piece of work, and the bytes after which it takes no more."""
_MAX_MODELS = 16
_FIELDS = {"custom_id", "method", "url", "body"}
_ID_GROUPS = 256


class LineCheck:
    """Reads one file, in any thread.

    Args:
        max_lines: of it.
        routes: that a line may name.
        note: told each line that is good, and its bytes with the line feed.
    """

    def __init__(
        self,
        max_lines: int,
        routes: Collection[str] = BATCH_ROUTES,
        note: Callable[[dict[str, Any], int], None] = lambda value, size: None,
    ) -> None:
        self._max_lines = max_lines
        self._routes = routes
        self._tell = note
        self._rest = bytearray()
        self._offset = 0
        """Bytes of whole lines so far."""
        self.num_lines = 0
        self._ids = array("Q")
        """A hash of each id: 8 bytes a line."""
        self._slices: list[tuple[int, int]] = []
        """Offset of each piece of work, and how many lines it has."""
        self._urls: dict[str, None] = {}
        self._models: dict[str, None] = {}

    def feed(self, data: bytes) -> None:
        """Check more of the file; raises ``BadRequest`` that names the line."""
        self._rest += data
        begin = 0
        while (end := self._rest.find(b"\n", begin)) >= 0:
            self._line(bytes(self._rest[begin:end]), end + 1 - begin)
            begin = end + 1
        del self._rest[:begin]
        if len(self._rest) > MAX_LINE_BYTES:
            raise self._refused(f"it is longer than {MAX_LINE_BYTES} bytes", self.num_lines + 1)

    def finish(self) -> None:
        """The file is whole; raises like ``feed``."""
        if self._rest:
            self._line(bytes(self._rest), len(self._rest))
            self._rest.clear()
        if not self.num_lines:
            raise BadRequest("the file has no line", param="file", code="invalid_file")
        if _has_repeated(self._ids):
            self._refuse_repeated()

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that a batch has to know of it."""
        return {"lines": self.num_lines, "urls": list(self._urls), "models": list(self._models)}

    @property
    def index(self) -> bytes:
        """Pieces of work: offset and number of lines of each."""
        return orjson.dumps(self._slices)

    def _line(self, text: bytes, size: int) -> None:
        number = self.num_lines + 1
        if number > self._max_lines:
            raise BadRequest(f"the file has more than {self._max_lines} lines", param="file", code="invalid_file")
        if len(text) > MAX_LINE_BYTES:
            raise self._refused(f"it is longer than {MAX_LINE_BYTES} bytes", number)
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._refused(_why_no_json(text), number) from error
        if (problem := self._problem(value)) is not None:
            raise self._refused(problem, number)
        self._note(value, size)

    def _problem(self, value: Any) -> str | None:
        if not isinstance(value, dict) or set(value) - _FIELDS:
            return f"it must be an object of {', '.join(sorted(_FIELDS))}"
        own, body = value.get("custom_id"), value.get("body")
        if not isinstance(own, str) or not 0 < len(own) <= MAX_ID_CHARS:
            return f"custom_id must be a text of 1 to {MAX_ID_CHARS} characters"
        if value.get("method") != "POST":
            return "method must be POST"
        if value.get("url") not in self._routes:
            return f"url must be one of {', '.join(self._routes)}"
        if not isinstance(body, dict):
            return "body must be an object"
        if body.get("stream") or body.get("background"):
            return "body can have neither stream nor background"
        if "models" in body:
            return "body can name one model alone: a line waits for its model, and asks no other"
        model = body.get("model", "")
        if not isinstance(model, str) or len(model) > MAX_MODEL_NAME_CHARS:
            return f"body.model must be a text of at most {MAX_MODEL_NAME_CHARS} characters"
        if model not in self._models and len(self._models) >= _MAX_MODELS:
            return f"the file names more than {_MAX_MODELS} models"
        return None

    def _note(self, value: dict[str, Any], size: int) -> None:
        self._ids.append(_hash(value["custom_id"]))
        self._urls[value["url"]] = None
        if model := value["body"].get("model", ""):
            self._models[model] = None
        begin, count = self._slices[-1] if self._slices else (0, SLICE_LINES)
        if count >= SLICE_LINES or self._offset - begin >= SLICE_BYTES:
            self._slices.append((self._offset, 1))
        else:
            self._slices[-1] = begin, count + 1
        self._offset += size
        self.num_lines += 1
        self._tell(value, size)

    def _refuse_repeated(self) -> None:
        seen: set[int] = set()
        for number, own in enumerate(self._ids, 1):
            if own in seen:
                raise self._refused("its custom_id is that of an earlier line", number)
            seen.add(own)

    def _refused(self, what: str, number: int) -> BadRequest:
        return BadRequest(f"line {number}: {what}", param="file", code="invalid_file")


def _why_no_json(text: bytes) -> str:
    if not text.strip():
        return "it is blank"
    return "it begins with a byte order mark, which is not JSON" if text.startswith(BOM_UTF8) else "it is not JSON"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _has_repeated(ids: array[int]) -> bool:
    """Whether two are the same, group by group: one sort of a million of them takes 44 MB, and keeps the interpreter's
    lock to its end.
    """
    groups = [array("Q") for _ in range(_ID_GROUPS)]
    for own in ids:
        groups[own % _ID_GROUPS].append(own)
    return any(len(set(group)) < len(group) for group in groups)
