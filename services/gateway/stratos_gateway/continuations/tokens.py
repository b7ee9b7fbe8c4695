"""Continuation tokens: an answer's state, sealed under a sub-key of its tenant, so no gateway has to keep it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial

from stratos.common.continuation_errors import InvalidContinuation
from stratos.core.requests.continuation import ContinuationState
from stratos.store.data_keys import BrokenSeal, Purpose, seal_same, unseal
from stratos.store.sealed.answer_store import SubKey
from stratos_gateway.continuations.codec import decode_state, encode_state
from stratos_gateway.continuations.settings import ContinuationsConfig

PARAM = "continuation_token"
"""Field of a request, and of the end of an answer."""
_PREFIX = "cont_"
_TOKEN_CHARS = 4
"""Most of a token id below 2 ** 21: 3 bytes, as base64."""
_HEAD_CHARS = 1024
"""More than the facts and lengths of an answer take."""


class ContinuationTokens:
    """Belongs to the event loop.

    Args:
        sub_key: of a tenant.
        config: of the gateway.
    """

    def __init__(self, sub_key: SubKey, config: ContinuationsConfig) -> None:
        self._sub_key = sub_key
        self._config = config

    @property
    def kept_s(self) -> int:
        """Seconds that a token is good for."""
        return self._config.kept_s

    def can_be_made(self, tenant_id: str) -> bool:
        """Whether a tenant's answers can have one."""
        is_wanted = self._config.kept_s > 0 and self._config.max_bytes > 0
        return is_wanted and self._sub_key(tenant_id, Purpose.CONTINUATIONS) is not None

    def can_hold(self, num_tokens: int) -> bool:
        """Whether any output of so many tokens has room in one."""
        return _HEAD_CHARS + _TOKEN_CHARS * num_tokens <= self._config.max_bytes

    def make(self, tenant_id: str, state: ContinuationState) -> str:
        """The token of an answer; "" where it would be too long, or the tenant's key has gone."""
        key = self._sub_key(tenant_id, Purpose.CONTINUATIONS)
        if key is None:
            return ""
        sealed = seal_same(key, encode_state(state), tenant_id.encode())
        text = _PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        return text if len(text) <= self._config.max_bytes else ""

    def open(self, tenant_id: str, text: str) -> ContinuationState:
        """The answer that a token is of; its time may be over.

        Raises:
            InvalidContinuation: it is no token of this tenant, or was altered.
        """
        return self.opening_of(tenant_id, text)()

    def opening_of(self, tenant_id: str, text: str) -> Callable[[], ContinuationState]:
        """``open`` for another thread: a long token takes its time."""
        return partial(_opened, self._sub_key(tenant_id, Purpose.CONTINUATIONS), tenant_id, text)


def _opened(key: bytes | None, tenant_id: str, text: str) -> ContinuationState:
    try:
        if key is None or not text.startswith(_PREFIX):
            raise ValueError
        body = text.removeprefix(_PREFIX).encode("ascii")
        sealed = base64.b64decode(body + b"=" * (-len(body) % 4), altchars=b"-_", validate=True)
        return decode_state(unseal(key, sealed, tenant_id.encode()))
    except (BrokenSeal, ValueError):
        raise InvalidContinuation(f"{PARAM} is no token of yours, or was altered", param=PARAM) from None
