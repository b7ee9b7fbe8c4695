"""Names of KV blocks: a SHA-256 chain, so equal names mean equal prefixes under equal identity.

    root      = H("stratos-kv-v1", salt, model digest, adapter digest, KV dtype, rope variant)
    block[i]  = H(block[i-1], token ids of block i as little-endian uint32)

Only full blocks have a name.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from stratos.core.kv import KvIdentity

_DOMAIN = b"stratos-kv-v1"


def chain_root(identity: KvIdentity, adapter_digest: str, cache_salt: bytes) -> bytes:
    """Root of the chains of one (tenant salt, model, adapter, dtype, rope) combination: 32 bytes."""
    digest = hashlib.sha256(_DOMAIN)
    fields = (identity.model_digest, adapter_digest, identity.kv_dtype, identity.rope_variant)
    for part in (cache_salt, *(text.encode() for text in fields)):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()


def next_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of the block that holds ``token_ids`` behind ``parent``: 32 bytes."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()
