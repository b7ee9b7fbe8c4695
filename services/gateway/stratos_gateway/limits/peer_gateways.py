"""A gateway that Redis has not told the others of learns from them who shares the limits, and is counted by them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stratos.api.gateway.v1 import limits_pb2, limits_pb2_grpc
from stratos_gateway.limits.leaser import Leaser

_POLL_S = 0.2
_RETRY_S = 1.0
ExchangeGateways = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[str]] | None]]
"""Names that are known here, the own first -> what each of the other gateways answers, in the same order; empty where
there is none, ``None`` where none answers."""


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
        """Root task; does nothing once Redis has told the others of this gateway."""
        while not self._leaser.is_registered:
            if self._leaser.is_away and (found := await self._exchange(self._leaser.known.at_first_hand)) is not None:
                self._leaser.count_in(found)
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
        if leaser is None or list(request.gateways[:1]) == [leaser.known.own]:  # it is among its own peers
            return limits_pb2.ExchangeGatewaysResponse()
        leaser.note_gateways(request.gateways)
        return limits_pb2.ExchangeGatewaysResponse(gateways=leaser.known.at_first_hand)
