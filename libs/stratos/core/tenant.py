"""For whom the platform works: what it derives from an API key."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratos.core.adapter import BASE_MODEL, AdapterRef
from stratos.core.requests.limits import DEFAULT_PRIORITY_CLASS
from stratos.core.requests.terms import RequestTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer."""

    name: str
    cache_salt: bytes = field(default=b"", repr=False)
    """Separates the prefix caches of tenants."""
    priority_class: int = DEFAULT_PRIORITY_CLASS
    """0 is the most urgent."""

    def terms(self, adapter: AdapterRef = BASE_MODEL) -> RequestTerms:
        """Terms of the tenant's requests on ``adapter``; times are to be filled in."""
        return RequestTerms(
            tenant=self.name, cache_salt=self.cache_salt, priority_class=self.priority_class, adapter=adapter
        )
