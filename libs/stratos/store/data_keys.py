"""Data keys: what is kept of a tenant's texts is sealed under a key of its own, which ends with the tenant.

    platform key (a Secret; Redis, copies of the snapshot and backups never hold it)
      └─ wraps the data key of each tenant (``DataKeyRecord``, by the tenant's id)
           └─ HKDF-SHA256 ─▶ a sub-key for each purpose, in memory alone
                └─ AES-256-GCM: nonce || ciphertext || tag, bound to the place where it is kept

Deleting a tenant destroys its wrapped key; without it what is left of its sealed texts, in any backup, is noise.  A new
platform key wraps the same data keys again, so nothing that is sealed is touched.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stratos.common.errors import BadRequest

KEY_BYTES = 32
NONCE_BYTES = 12
DEFAULT_PLATFORM_KEY_ID = "1"
_TAG_BYTES = 16


class Purpose(enum.StrEnum):
    """Uses of a data key; no two of them share a sub-key, and a value never changes."""

    RESPONSE_CACHE = "response-cache"
    STORED_RESPONSES = "stored-responses"
    STREAM_RECORDS = "stream-records"
    FILES = "files"
    CONTINUATIONS = "continuations"
    KV_ON_DISK = "kv-on-disk"
    PREFIX_HASHES = "prefix-hashes"


class BrokenSeal(Exception):
    """It was sealed under another key or for another place, or altered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKeyRecord:
    """The data key of a tenant, as stored."""

    tenant_id: str
    platform_key_id: str
    wrapped: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformKeys:
    """Keys that wrap data keys: one for new ones, and older ones that still unwrap."""

    current: bytes = field(repr=False)
    current_id: str = DEFAULT_PLATFORM_KEY_ID
    older: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By id."""

    def make(self, tenant_id: str) -> DataKeyRecord:
        """A fresh data key, wrapped."""
        return self.wrap(tenant_id, secrets.token_bytes(KEY_BYTES))

    def wrap(self, tenant_id: str, data_key: bytes) -> DataKeyRecord:
        """A data key under the current platform key."""
        wrapped = seal(self.current, data_key, _place(tenant_id, self.current_id))
        return DataKeyRecord(tenant_id=tenant_id, platform_key_id=self.current_id, wrapped=wrapped)

    def unwrap(self, record: DataKeyRecord) -> bytes:
        """The data key.

        Raises:
            BrokenSeal: its platform key is not set here, is another one, or the record was altered.
        """
        is_current = record.platform_key_id == self.current_id
        key = self.current if is_current else self.older.get(record.platform_key_id)
        if key is None:
            raise BrokenSeal(f"the platform key {record.platform_key_id[:64]!r} is not set here")
        return unseal(key, record.wrapped, _place(record.tenant_id, record.platform_key_id))


def parse_platform_key(text: str) -> bytes:
    """The platform key of a Secret: 32 bytes as 64 hexadecimal digits, or as base64.

    Raises:
        BadRequest: it is neither; the text is not repeated.
    """
    text = text.strip()
    for decode in (bytes.fromhex, _base64):
        try:
            key = decode(text)
        except ValueError:
            continue
        if len(key) == KEY_BYTES:
            return key
    raise BadRequest(f"a platform key is {KEY_BYTES} bytes, as hexadecimal digits or base64", param="platform_key")


def sub_key(data_key: bytes, purpose: Purpose) -> bytes:
    """The key for one purpose; from it neither the data key nor another sub-key can be told."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=f"stratos {purpose}".encode()).derive(data_key)


class PlaceCipher:
    """Seals many texts under one key, whose schedule is made once.

    Args:
        key: 32 bytes.
        num_texts: how many nonces are drawn at a time.
    """

    def __init__(self, key: bytes, num_texts: int = 1) -> None:
        self._cipher = AESGCM(key)
        self._num_bytes = max(1, num_texts) * NONCE_BYTES
        self._nonces, self._num_used = b"", 0

    def seal(self, plain: bytes, place: bytes) -> bytes:
        """Encrypt under a random nonce, as ``seal``."""
        begin = self._num_used
        if begin == len(self._nonces):
            self._nonces, begin = os.urandom(self._num_bytes), 0
        self._num_used = begin + NONCE_BYTES
        nonce = self._nonces[begin : self._num_used]
        return nonce + self._cipher.encrypt(nonce, plain, place)


def seal(key: bytes, plain: bytes, place: bytes) -> bytes:
    """Encrypt under a random nonce.

    Args:
        key: 32 bytes.
        plain: what is kept.
        place: where it is kept, such as the name in Redis: it opens there alone.
    """
    return PlaceCipher(key).seal(plain, place)


def seal_same(key: bytes, plain: bytes, place: bytes) -> bytes:
    """Encrypt so that the same text at the same place is sealed to the same bytes; else as ``seal``."""
    nonce_key = hmac.digest(key, b"nonces of what is sealed the same", "sha256")
    nonce = hmac.digest(nonce_key, len(place).to_bytes(8, "big") + place + plain, "sha256")[:NONCE_BYTES]
    return nonce + AESGCM(key).encrypt(nonce, plain, place)


def unseal(key: bytes, sealed: bytes, place: bytes) -> bytes:
    """The way back; raises ``BrokenSeal``."""
    if len(sealed) < NONCE_BYTES + _TAG_BYTES:
        raise BrokenSeal("it is too short")
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
    except InvalidTag:
        raise BrokenSeal("it was sealed under another key or for another place, or altered") from None


def _place(tenant_id: str, platform_key_id: str) -> bytes:
    return f"data key of {tenant_id} under {platform_key_id}".encode()


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
