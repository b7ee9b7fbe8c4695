"""What gateways and routers tell each other of convictions: the same record in both directions."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.api.router.v1 import router_pb2
from stratos.core.requests.convictions import Conviction, ConvictionUpdate


def question_to_pb(update: ConvictionUpdate) -> router_pb2.ExchangeConvictionsRequest:
    """A gateway's update as a message."""
    return router_pb2.ExchangeConvictionsRequest(
        incarnation=update.incarnation, cursor=update.cursor, convictions=_to_pb(update)
    )


def question_from_pb(message: router_pb2.ExchangeConvictionsRequest) -> ConvictionUpdate:
    """A gateway's update from a message."""
    convictions = _from_pb(message.convictions)
    return ConvictionUpdate(incarnation=message.incarnation, cursor=message.cursor, convictions=convictions)


def answer_to_pb(update: ConvictionUpdate) -> router_pb2.ExchangeConvictionsResponse:
    """A router's update as a message."""
    return router_pb2.ExchangeConvictionsResponse(
        incarnation=update.incarnation, cursor=update.cursor, convictions=_to_pb(update)
    )


def answer_from_pb(message: router_pb2.ExchangeConvictionsResponse) -> ConvictionUpdate:
    """A router's update from a message."""
    convictions = _from_pb(message.convictions)
    return ConvictionUpdate(incarnation=message.incarnation, cursor=message.cursor, convictions=convictions)


def _to_pb(update: ConvictionUpdate) -> list[router_pb2.Conviction]:
    return [
        router_pb2.Conviction(tenant=one.tenant, prompt_digest=one.prompt_digest, left_ms=round(one.left_s * 1000))
        for one in update.convictions
    ]


def _from_pb(messages: Iterable[router_pb2.Conviction]) -> tuple[Conviction, ...]:
    return tuple(
        Conviction(tenant=one.tenant, prompt_digest=one.prompt_digest, left_s=one.left_ms / 1000) for one in messages
    )
