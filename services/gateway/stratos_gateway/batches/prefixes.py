"""Which lines begin alike: keys of a fixed size whose order puts lines with a common prefix beside each other.

A key has hashes of the model, of the first 64, 256 and 1,024 characters of what the prompt is made of, of its head, and
of the first 4,096 and 16,384 characters.  The head is all but the last message, or a text up to its last line: what
lines mostly share, however long it is.  Two lines that begin alike have the same hashes up to there.  So an order by
keys is one by shared prefixes, at 28 bytes a line however long the lines are.
"""

from __future__ import annotations

import zlib
from typing import Any

import orjson

SHORT, LONG = (64, 256, 1024), (4096, 16384)
KEY_BYTES = 4 * (1 + len(SHORT) + 1 + len(LONG))
_FIRST = ("tools", "instructions", "system", "instruction")
"""Fields that templates write before the others."""
_REST = ("messages", "prompt", "input", "query", "text_1", "queries", "data_1")
"""Fields that prompts begin with, one of them in each body: of a pair that is judged, the query."""


def prefix_key(body: dict[str, Any]) -> bytes:
    """Key of a line's body."""
    first = [body[name] for name in _FIRST if name in body]
    rest = next((body[name] for name in _REST if name in body), "")
    text = _json([first, rest])[: LONG[-1]]
    hashes = [
        zlib.crc32(str(body.get("model", "")).encode("utf-8", "surrogatepass")),
        *(zlib.crc32(text[:length]) for length in SHORT),
        zlib.crc32(_json([first, _head(rest)])),
        *(zlib.crc32(text[:length]) for length in LONG),
    ]
    return b"".join(value.to_bytes(4, "big") for value in hashes)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # nested deeper than it writes, while it reads a thousand levels; the route refuses such a body
        return b""


def _head(rest: Any) -> Any:
    if isinstance(rest, str):
        return rest.rpartition("\n")[0]
    return rest[:-1] if isinstance(rest, list) else rest
