"""Convictions that gateways and routers exchange: the same record in both directions."""

from __future__ import annotations

from stratos.api.router.v1 import router_pb2
from stratos.core.requests.convictions import Conviction, ConvictionUpdate
from stratos.rpc.codec.fields import each, whole_ms
from stratos.rpc.codec.flat import FlatCodec

_CONVICTION = FlatCodec(Conviction, router_pb2.Conviction, fields={"left_s": whole_ms("left_ms")})
GATEWAY_UPDATE = FlatCodec(
    ConvictionUpdate, router_pb2.ExchangeConvictionsRequest, fields={"convictions": each(_CONVICTION)}
)
ROUTER_UPDATE = FlatCodec(
    ConvictionUpdate, router_pb2.ExchangeConvictionsResponse, fields={"convictions": each(_CONVICTION)}
)
