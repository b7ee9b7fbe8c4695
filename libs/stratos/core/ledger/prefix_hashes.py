"""Hashes of a prompt's beginnings, as its entry has them: they say what two prompts share, and nothing of their text.

    root     = HMAC(key of the tenant, cache salt, model digest, adapter digest)
    hash[i]  = beginning of a SHA-256 chain from that root on, over blocks of 512 tokens (``stratos.core.block_hash``)

The key is one that the ledger's stores never hold, so a text cannot be tried against an entry, and equal hashes mean
equal prefixes of one tenant, model and adapter: among a million different ones two are equal by chance in one case of
500.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from stratos.core.block_hash import block_hashes

PREFIX_TOKENS = 512
"""Tokens of a block, as of Mooncake's traces."""
_HASH_BYTES = 6
_HASH_CHARS = 8
"""In base64."""
_LENGTH_BYTES = 4


def prefix_root(key: bytes, cache_salt: bytes, model_digest: str, adapter_digest: str) -> bytes:
    """Root of the chains of one tenant, model and adapter: 32 bytes.

    Args:
        key: of the tenant.
        cache_salt: separates requests that share no prefix cache.
        model_digest: of the base model.
        adapter_digest: empty for the base model.
    """
    parts = cache_salt, model_digest.encode(), adapter_digest.encode()
    framed = b"".join(len(part).to_bytes(_LENGTH_BYTES, "little") + part for part in parts)
    return hmac.digest(key, framed, "sha256")


def prefix_hashes(root: bytes, token_ids: Sequence[int], max_hashes: int) -> str:
    """Hashes of the first 512 tokens, of the first 1,024 and so on, as one text; empty where there are none."""
    hashes = block_hashes(root, token_ids[: max_hashes * PREFIX_TOKENS], PREFIX_TOKENS)
    return base64.b64encode(b"".join(whole[:_HASH_BYTES] for whole in hashes)).decode()


def split_prefix_hashes(text: str) -> list[str]:
    """Each hash of such a text."""
    return [text[begin : begin + _HASH_CHARS] for begin in range(0, len(text), _HASH_CHARS)]
