"""The tag that a request is billed by."""

from __future__ import annotations

from stratos.core.ledger.usage import MeterTag
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.models.catalogue import BaseModel, ModelTarget


def meter_tag(
    base: BaseModel, tenant: Tenant, target: ModelTarget, route: str, trace: TraceContext, arrived_unix_ms: int
) -> MeterTag:
    """The tag of a request.

    Args:
        base: of this gateway.
        tenant: whose key it carries.
        target: what it runs on.
        route: "chat", "completion" or "embedding".
        trace: with the id that the client knows.
        arrived_unix_ms: now, by this gateway's clock.
    """
    return MeterTag(
        key_id=tenant.key_id,
        model=base.name,
        model_size=base.size,
        adapter=target.name if target.adapter.digest else "",
        route=route,
        http_request_id=trace.http_request_id,
        arrived_unix_ms=arrived_unix_ms,
    )
