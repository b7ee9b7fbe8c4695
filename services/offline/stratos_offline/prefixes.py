"""Which lines begin alike: keys of a fixed size whose order puts lines with a common prefix beside each other.

A key has a hash of the model and of the first 64, 256, 1,024, 4,096 and 16,384 characters of what the prompt is made
of.  Two lines that begin alike up to one of these lengths have the same hashes up to there.  So an order by keys is one
by shared prefixes, at 24 bytes a line however long the lines are.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

LENGTHS = (64, 256, 1024, 4096, 16384)
KEY_BYTES = 4 * (1 + len(LENGTHS))
_FIRST = ("tools", "instructions", "system", "messages", "prompt", "input")
"""Fields in the order in which templates write them."""


def prefix_key(body: dict[str, Any]) -> bytes:
    """Key of a line's body."""
    text = orjson.dumps([body[name] for name in _FIRST if name in body])[: LENGTHS[-1]]
    hashes = [zlib.crc32(str(body.get("model", "")).encode("utf-8", "surrogatepass"))]
    found, begin = 0, 0
    for length in LENGTHS:
        found = zlib.crc32(text[begin:length], found)
        hashes.append(found)
        begin = length
    return b"".join(value.to_bytes(4, "big") for value in hashes)


def prefix_order(keys: bytes | bytearray) -> npt.NDArray[np.int64]:
    """Numbers of lines by their keys; lines of one key stay in their order.

    Args:
        keys: of all lines, one after another.
    """
    columns = np.frombuffer(keys, dtype=">u4").reshape(-1, KEY_BYTES // 4).T
    return np.lexsort(columns[::-1]).astype(np.int64, copy=False)
