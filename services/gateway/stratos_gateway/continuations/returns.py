"""Tokens of streams without a client that have failed, and never had anything to show: they are as good as new."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

from stratos.common.continuation_errors import InvalidContinuation
from stratos.common.errors import DependencyDown
from stratos.store.counters.redemptions import Redeemer, Redemptions
from stratos_gateway.continuations.tokens import PARAM, ContinuationTokens

_log = logging.getLogger(__name__)


class TokenReturns:
    """Gives tokens back whose redeemer has ended for good.

    Args:
        tokens: of all tenants.
        redemptions: over all gateways.
    """

    def __init__(self, tokens: ContinuationTokens, redemptions: Redemptions) -> None:
        self._tokens = tokens
        self._redemptions = redemptions

    async def give_back(self, tenant_id: str, body: Mapping[str, Any], stream: str) -> None:
        """Give back the token of a stream's body, if it has one that the stream redeemed."""
        text = body.get(PARAM)
        if not isinstance(text, str):
            return
        try:
            state = self._tokens.open(tenant_id, text)
            await self._redemptions.release(tenant_id, state.name, Redeemer(stream))
        except InvalidContinuation:
            return
        except (DependencyDown, RedisError) as error:
            _log.warning("a continuation token stays redeemed, though nothing came of it: %s", error)
