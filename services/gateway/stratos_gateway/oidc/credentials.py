"""An API key or a token: which of both checks a credential."""

from __future__ import annotations

from stratos.common.errors import StratosError
from stratos.core.tenant import Tenant
from stratos_gateway.access.auth import Authenticator
from stratos_gateway.oidc.token_check import TokenCheck, is_token


class KeysAndTokens(Authenticator):
    """Takes both.

    Args:
        keys: checks API keys.
        tokens: checks tokens.
    """

    def __init__(self, keys: Authenticator, tokens: TokenCheck) -> None:
        self._keys = keys
        self._tokens = tokens

    async def authenticate(self, key: str) -> Tenant:
        """By the form of what the client sent."""
        return await (self._tokens if is_token(key) else self._keys).authenticate(key)

    def refusal(self, tenant: Tenant) -> StratosError | None:
        """Keys know ids of keys alone, so a token's subject is none of theirs."""
        return self._keys.refusal(tenant)
