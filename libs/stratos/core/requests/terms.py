"""For whom and on what terms a request runs: the one record that all parts of the request path hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stratos.core.adapter import BASE_MODEL, AdapterRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """Tenant, class, adapter and times of a request.

    Times are monotonic seconds of the process that holds the record; on the wire a deadline travels as the
    milliseconds that are left (``stratos.rpc.codec.terms``).
    """

    tenant: str = ""
    """Derived from the API key, never from the client."""
    cache_salt: bytes = field(default=b"", repr=False)
    """Separates the prefix caches of tenants."""
    priority_class: int = 0
    """0 is the most urgent class."""
    adapter: AdapterRef = BASE_MODEL
    arrival_s: float = 0.0
    deadline_s: float | None = None
    """When the first token is due; ``None`` means no deadline."""
    end_s: float | None = None
    """When everything is over, the last token too; ``None`` means no bound."""

    def for_router(self) -> RequestTerms:
        """The part that placement needs: the router knows no salts."""
        return replace(self, cache_salt=b"", adapter=replace(self.adapter, uri=""))

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the deadline, 0 when it has passed; ``None`` without a deadline."""
        return None if self.deadline_s is None else max(self.deadline_s - now_s, 0.0)


def is_over(terms: RequestTerms, now_s: float) -> bool:
    """The request's time has ended, wherever it is."""
    return terms.end_s is not None and terms.end_s <= now_s


DEFAULT_TERMS = RequestTerms()
"""The base model, the most urgent class, no deadline."""
