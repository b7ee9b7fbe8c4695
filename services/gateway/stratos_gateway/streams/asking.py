"""Which requests want a record of their answer, and the names that they get.

``strm_`` + 16 digits (random, or a keyed hash of the idempotency key) and twice 8 digits that only this tenant's
sub-key gives: so an id of another tenant is as unknown as one that never was, and one of our own that is not there is
known to have ended.  The first 24 are those of a background response's id as well.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from starlette.datastructures import Headers

from stratos.common.errors import BadRequest

KEY_HEADER, CURSOR_HEADER, STREAM_HEADER = "idempotency-key", "last-event-id", b"x-stratos-stream"
NO_STREAM = b"none"
"""Value of the header where a record was wanted and there is none."""
MAX_KEY_CHARS = 255
_MAX_CURSOR_CHARS = 4096
_PREFIX = "strm_"
_RESPONSE = "resp_"
_NUM_OWN, _NUM_DIGITS, _NUM_CHECK = 16, 24, 8


def idempotency_key(headers: Headers) -> str:
    """The key of a request, or "".

    Raises:
        BadRequest: there are several, or it is no text of 1 to 255 visible ASCII characters.
    """
    values = headers.getlist(KEY_HEADER)
    if not values:
        return ""
    key = values[0] if len(values) == 1 else ""
    if not (0 < len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        text = f"{KEY_HEADER} must be one text of 1 to {MAX_KEY_CHARS} visible ASCII characters"
        raise BadRequest(text, param=KEY_HEADER, code="invalid_idempotency_key")
    return key


def last_event_id(headers: Headers) -> str:
    """The id of the last event that a client got, or ""; raises ``BadRequest`` for one that no event had."""
    text = headers.get(CURSOR_HEADER, "")
    if len(text) > _MAX_CURSOR_CHARS:
        raise bad_cursor()
    return text


def bad_cursor() -> BadRequest:
    """Refusal of an id that no event of the stream has."""
    text = f"{CURSOR_HEADER} is not the id of an event of this stream"
    return BadRequest(text, param=CURSOR_HEADER, code="invalid_cursor")


def keyed_hash(key: bytes, what: str) -> str:
    """64 digits that nothing can be told from without the key."""
    return hmac.new(key, what.encode(), hashlib.sha256).hexdigest()


def body_fingerprint(sub_key: bytes, path: str, body: bytes) -> str:
    """Hash of what a request with a key has to be each time."""
    return hmac.new(sub_key, path.encode() + b"\0" + body, hashlib.sha256).hexdigest()


def stream_id(sub_key: bytes, idempotency: str) -> str:
    """The id of a stream: the same for the same idempotency key, a fresh one without."""
    own = keyed_hash(sub_key, f"key {idempotency}")[:_NUM_OWN] if idempotency else secrets.token_hex(_NUM_OWN // 2)
    return _with_check(sub_key, _digits(sub_key, own))


def response_id(stream: str) -> str:
    """The id of the background response that is a stream."""
    return _RESPONSE + stream.removeprefix(_PREFIX)[:_NUM_DIGITS]


def stream_of_response(sub_key: bytes, text: str) -> str:
    """The stream of a background response of the tenant whose sub-key it is; "" for any other id."""
    digits = text.removeprefix(_RESPONSE)
    if not (text.isascii() and hmac.compare_digest(text, _RESPONSE + _digits(sub_key, digits[:_NUM_OWN]))):
        return ""
    return _with_check(sub_key, digits)


def is_stream_id(sub_key: bytes, text: str) -> bool:
    """Whether this could be a stream of the tenant whose sub-key it is."""
    digits = text.removeprefix(_PREFIX)[:_NUM_DIGITS]
    return text.isascii() and hmac.compare_digest(text, _with_check(sub_key, digits))


def cursor_tag(sub_key: bytes, stream: str) -> str:
    """Beginning of the ids of a stream's events: no other stream's begin so."""
    return keyed_hash(sub_key, f"cursor {stream}")[:12]


def derived_seed(tenant_secret: bytes, idempotency: str) -> int:
    """Seed of a request with an idempotency key and no seed: equal at every gateway, whether or not Redis answers."""
    return int(keyed_hash(tenant_secret, f"seed {idempotency}")[:16], 16) >> 1


def derived_id(tenant_secret: bytes, idempotency: str, fresh: str) -> str:
    """Id of the answer to such a request, in the form of a fresh one."""
    return fresh[:-_NUM_DIGITS] + keyed_hash(tenant_secret, f"answer {idempotency}")[:_NUM_DIGITS]


def _digits(sub_key: bytes, own: str) -> str:
    return own + keyed_hash(sub_key, f"response {own}")[:_NUM_CHECK]


def _with_check(sub_key: bytes, digits: str) -> str:
    return f"{_PREFIX}{digits}{keyed_hash(sub_key, f'stream {digits}')[:_NUM_CHECK]}"
