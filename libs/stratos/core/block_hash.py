"""Hashes of KV blocks: a SHA-256 chain, so equal hashes mean equal prefixes under equal identity.

    root      = H("stratos-kv-v1", salt, model digest, adapter digest, KV dtype, rope variant)
    block[i]  = H(block[i-1], token ids of block i as little-endian uint32)

Only full blocks have a hash.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from stratos.core.kv import KvIdentity

_DOMAIN = b"stratos-kv-v1"


def chain_root(identity: KvIdentity, adapter_digest: str, cache_salt: bytes) -> bytes:
    """Root of the chains of one (tenant salt, model, adapter, dtype, rope) combination: 32 bytes."""
    fields = (identity.model_digest, adapter_digest, identity.kv_dtype, identity.rope_variant)
    framed = [_DOMAIN]
    for part in (cache_salt, *map(str.encode, fields)):
        framed += (len(part).to_bytes(4, "little"), part)
    return hashlib.sha256(b"".join(framed)).digest()


def block_hashes(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes, 32 bytes each, of the full blocks of ``token_ids``, which follow the block with hash ``parent``.

    7 tokens in blocks of 3 make 2 hashes: of tokens [0, 3) and [3, 6).
    """
    data = array("I", token_ids)  # at once: an array of its own for each block takes as long as its hash
    size, hashes = block_size * data.itemsize, []
    text = data.tobytes()
    for end in range(size, len(text) + 1, size):
        parent = hashlib.sha256(parent + text[end - size : end]).digest()
        hashes.append(parent)
    return hashes
