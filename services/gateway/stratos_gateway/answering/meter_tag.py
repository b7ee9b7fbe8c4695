"""The tag under which workers count a request, and its ledger's entry goes."""

from __future__ import annotations

from collections.abc import Mapping

from stratos.core.ledger.usage import REVISION_DIGITS, MeterTag, cost_tags
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.models.catalogue import ModelTarget

NO_METADATA: Mapping[str, str] = {}


def meter_tag(
    tenant: Tenant,
    target: ModelTarget,
    route: str,
    trace: TraceContext,
    arrived_unix_ms: int,
    metadata: Mapping[str, str] = NO_METADATA,
    *,
    is_whole: bool = False,
) -> MeterTag:
    """The tag of a request.

    Args:
        tenant: whose key it carries.
        target: what it runs on.
        route: of its dialect, or "embedding".
        trace: with the id that the client knows.
        arrived_unix_ms: now, by this gateway's clock.
        metadata: of the request, of which short texts are cost tags.
        is_whole: the answer goes in one piece.
    """
    base = target.served.base
    return MeterTag(
        key_id=tenant.key_id,
        model=base.name,
        revision=base.digest[:REVISION_DIGITS],
        model_size=base.size,
        adapter=target.name if target.adapter.digest else "",
        route=route,
        http_request_id=trace.http_request_id,
        arrived_unix_ms=arrived_unix_ms,
        cost_tags=cost_tags(metadata),
        is_batch=tenant.plan.is_batch,
        is_whole=is_whole,
    )
