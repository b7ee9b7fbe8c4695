"""For whom and on what terms a request runs: the one record that all parts of the request path hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from stratos.common.changed import changed, record
from stratos.core.adapter import BASE_MODEL, AdapterRef
from stratos.core.requests.pins import NO_PINS, PinTerms


@record(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of the platform a request may take, as its tenant's plan says; for the router alone."""

    weight: int = 1
    """Among the backlogged tenants of a class: 3 is served three times the tokens of 1."""
    max_batch_ratio: float = 1.0
    """It goes to no worker of which more than this part of the batch slots would then be taken."""
    kv_headroom_ratio: float = 0.0
    """Part of a worker's KV pool that it leaves free."""
    pools: frozenset[str] = frozenset()
    """Labels of the workers that serve it first."""
    kept_kv: Mapping[str, float] = field(default_factory=dict)
    """Label of a worker -> part of the KV pool there that other plans have reserved, which it leaves free as well."""


FULL_SHARE = Share()


@record(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """Tenant, class, adapter and times of a request.

    Times are monotonic seconds of the process that holds the record; on the wire a deadline travels as the
    milliseconds that are left (``stratos.rpc.codec.terms``).
    """

    tenant: str = ""
    """Id of the tenant, derived from the API key, never from the client."""
    tenant_name: str = ""
    """Label of the tenant for people, in metrics alone."""
    cache_salt: bytes = field(default=b"", repr=False)
    """Separates the prefix caches of tenants."""
    kv_key: bytes = field(default=b"", repr=False)
    """Seals the tenant's KV on disk; empty where nothing of it may go there. Only workers with a disk tier get it."""
    priority_class: int = 0
    """0 is the most urgent class."""
    share: Share = FULL_SHARE
    """Workers do not get it."""
    adapter: AdapterRef = BASE_MODEL
    arrival_s: float = 0.0
    age_s: float = 0.0
    """Seconds that the request was under way elsewhere before it arrived here; a moved one keeps its place by it."""
    deadline_s: float | None = None
    """When the first token is due; ``None`` means no deadline."""
    end_s: float | None = None
    """When everything is over, the last token too; ``None`` means no bound."""
    pins: PinTerms = NO_PINS
    """KV of the prompt that workers keep; the router does not get it."""

    @property
    def label(self) -> str:
        """Value of the label ``tenant`` in metrics."""
        return self.tenant_name or self.tenant

    @property
    def began_s(self) -> float:
        """When the request arrived at the platform."""
        return self.arrival_s - self.age_s

    def dated(self, arrival_s: float, deadline_s: float | None, end_s: float | None) -> RequestTerms:
        """The same with the times of a request."""
        return changed(self, arrival_s=arrival_s, deadline_s=deadline_s, end_s=end_s)

    def for_router(self) -> RequestTerms:
        """The part that placement needs: the router knows no salts and no names."""
        adapter = replace(self.adapter, uri="") if self.adapter.uri else self.adapter
        return changed(self, tenant_name="", cache_salt=b"", kv_key=b"", adapter=adapter, pins=NO_PINS)

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the deadline, 0 when it has passed; ``None`` without a deadline."""
        return None if self.deadline_s is None else max(self.deadline_s - now_s, 0.0)


def is_over(terms: RequestTerms, now_s: float) -> bool:
    """The request's time has ended, wherever it is."""
    return terms.end_s is not None and terms.end_s <= now_s


DEFAULT_TERMS = RequestTerms()
"""The base model, the most urgent class, no deadline."""
