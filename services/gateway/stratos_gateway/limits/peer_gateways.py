"""A gateway that Redis has not told the others of learns from them who shares the limits, and is counted by them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from stratos.api.gateway.v1 import limits_pb2, limits_pb2_grpc
from stratos_gateway.limits.leaser import Leaser

_POLL_S = 0.2
_RETRY_S = 1.0
ExchangeGateways = Callable[[Collection[str]], Awaitable[Iterable[str]]]
"""Names that are known here -> names that any other gateway knows; empty where none answers."""


class PeerGateways:
    """Asks the other gateways, where Redis goes away before they can have heard of this one.

    Args:
        leaser: counts them.
        exchange: asks all of them.
    """

    def __init__(self, leaser: Leaser, exchange: ExchangeGateways) -> None:
        self._leaser = leaser
        self._exchange = exchange

    async def run(self) -> None:
        """Root task; does nothing once this gateway is counted."""
        while not self._leaser.is_counted:
            if self._leaser.is_away:
                self._leaser.count_in(await self._exchange(self._leaser.gateways))
            await asyncio.sleep(_RETRY_S if self._leaser.is_away else _POLL_S)
        await asyncio.Event().wait()


class LimitsServicer(limits_pb2_grpc.LimitsServiceServicer):
    """Answers gateways that start.

    Args:
        leaser: of this gateway, once it is there.
    """

    def __init__(self, leaser: Callable[[], Leaser | None]) -> None:
        self._leaser = leaser

    async def ExchangeGateways(
        self, request: limits_pb2.ExchangeGatewaysRequest, context: Any
    ) -> limits_pb2.ExchangeGatewaysResponse:
        """Count those that ask, until Redis says who is there."""
        leaser = self._leaser()
        if leaser is None:
            return limits_pb2.ExchangeGatewaysResponse()
        if found := leaser.of_model(request.gateways):
            leaser.note_gateways(found)
        return limits_pb2.ExchangeGatewaysResponse(gateways=sorted({*leaser.gateways, *request.gateways}))
