"""Bytes of a KV block as they lie on disk: sealed under the tenant's key, bound to block, layout and tenant.

    magic 8 || layout 32 || block hash 32 || id of the key 16 || nonce 12 || AES-256-GCM of the pages || tag 16

What stands before the nonce is authenticated with the pages, so one flipped bit anywhere is found when the block is
read: the tag is the checksum, too.  The pages are opaque.  ``layout_digest`` covers all that says what they mean, and a
file of another layout is not opened.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import astuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stratos.engine.contract.runner import RunnerInfo

MAGIC = b"stratkv1"
_HEAD = struct.Struct("<8s32s32s16s")
_NONCE_BYTES, _TAG_BYTES = 12, 16
OVERHEAD_BYTES = _HEAD.size + _NONCE_BYTES + _TAG_BYTES
"""Bytes of a file beside those of the block."""
KEY_BYTES = 32


class DamagedBlock(Exception):
    """A file is not what was written for this block, this layout and this key."""


class OtherKey(Exception):
    """A file was sealed under another key: the tenant's data key is a new one."""


def layout_digest(info: RunnerInfo) -> bytes:
    """Identity of the bytes of a block: model, numerics, type, shape of the pages; 32 bytes."""
    digest = hashlib.sha256(b"stratos kv block on disk 1")
    for part in (*astuple(info.identity), *astuple(info.geometry), info.page_layout):
        text = str(part).encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return digest.digest()


def seal_block(key: bytes, layout: bytes, block_hash: bytes, content: bytes | memoryview) -> bytes:
    """The file of a block.

    Args:
        key: 32 bytes, the tenant's for KV on disk.
        layout: of ``layout_digest``.
        block_hash: salted, of 32 bytes.
        content: pages of the block.
    """
    head, nonce = _HEAD.pack(MAGIC, layout, block_hash, _key_id(key)), os.urandom(_NONCE_BYTES)
    return head + nonce + AESGCM(key).encrypt(nonce, content, head)


def open_block(key: bytes, layout: bytes, block_hash: bytes, sealed: bytes) -> bytes:
    """Pages of a block.

    Raises:
        OtherKey: it was sealed under another key.
        DamagedBlock: it was altered, cut, or is of another block or layout.
    """
    view, begin = memoryview(sealed), _HEAD.size + _NONCE_BYTES
    if len(view) < OVERHEAD_BYTES:
        raise DamagedBlock("it is too short")
    magic, its_layout, its_hash, its_key = _HEAD.unpack_from(view)
    if (magic, its_layout, its_hash) != (MAGIC, layout, block_hash):
        raise DamagedBlock("it is of another block, or of another layout")
    if its_key != _key_id(key):
        raise OtherKey("it was sealed under another key")
    try:
        return AESGCM(key).decrypt(view[_HEAD.size : begin], view[begin:], view[: _HEAD.size])
    except InvalidTag:
        raise DamagedBlock("it was altered") from None


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, b"id of a key for kv on disk", "sha256")[:16]
