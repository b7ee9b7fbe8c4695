"""The checksum of KV payloads that never pass through host memory: each device computes it while it copies.

A payload is a run of 64-bit words, little endian, the last one filled up with zeros.  Every word is mixed with its
place by a bijection (the finaliser of MurmurHash3), and the results are added up modulo 2^64, so parts may be added in
any order.  One damaged word is always found, several or exchanged ones with a chance of 2^-64 to be missed.  It is for
faults: a process that can write a payload can make it fit its checksum.  Payloads on the network keep SHA-256
(``stratos.kv_transfer.framing``).
"""

from __future__ import annotations

import numpy as np

PLACE = 0x9E3779B97F4A7C15
"""Times the number of a word, counted from 1, is added to it."""
FIRST = 0xFF51AFD7ED558CCD
SECOND = 0xC4CEB9FE1A85EC53
SHIFT = 33
WORD_BYTES = 8
_MASK = (1 << 64) - 1
_CHUNK_WORDS = 1 << 15
"""Mixed at once: stays in a processor's cache."""


def finish(total: int, num_bytes: int) -> int:
    """The checksum, from the sum of all mixed words and the payload's size."""
    value = (total + num_bytes) & _MASK
    for factor in (FIRST, SECOND):
        value = ((value ^ (value >> SHIFT)) * factor) & _MASK
    return value ^ (value >> SHIFT)


def mixed_sum(payload: memoryview | bytes | bytearray) -> int:
    """The checksum of a payload in host memory; the reference of the kernels."""
    data = np.frombuffer(payload, dtype=np.uint8)
    num_words = data.size // WORD_BYTES
    words = data[: num_words * WORD_BYTES].view("<u8")
    total = sum(_sum(words[at : at + _CHUNK_WORDS], at) for at in range(0, num_words, _CHUNK_WORDS))
    if rest := data[num_words * WORD_BYTES :].tobytes():
        total += _sum(np.frombuffer(rest.ljust(WORD_BYTES, b"\0"), dtype="<u8"), num_words)
    return finish(total, data.size)


def _sum(words: np.ndarray, begin: int) -> int:
    value = np.arange(begin + 1, begin + 1 + words.size, dtype=np.uint64)
    value *= np.uint64(PLACE)
    value += words
    for factor in (FIRST, SECOND):
        value ^= value >> np.uint64(SHIFT)
        value *= np.uint64(factor)
    value ^= value >> np.uint64(SHIFT)
    return int(value.sum(dtype=np.uint64))
