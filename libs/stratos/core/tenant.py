"""For whom the platform works: what it derives from an API key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network

from stratos.core.adapter import BASE_MODEL, AdapterRef
from stratos.core.requests.terms import RequestTerms
from stratos.core.tenancy.patterns import is_allowed
from stratos.core.tenancy.plan import ALL_MODELS, CHEAP_TIERS, LOCAL, CachePolicy, Plan
from stratos.core.tenancy.roles import Role

PLATFORM_TENANT = "stratos-health"
"""Tenant of the platform's own requests: they are not billed."""
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer, as one of its keys shows it."""

    name: str
    """Label for people; another customer may have it later."""
    id: str = ""
    """Identity, by which everything of the customer goes; without a record of its own that is its name."""
    is_namesake: bool = False
    """Another customer had this name before."""
    cache_salt: bytes = field(default=b"", repr=False)
    """Separates the prefix caches of tenants."""
    plan: Plan = LOCAL
    """Plan with the tenant's own overrides."""
    kept_kv: Mapping[str, float] = field(default_factory=dict)
    """KV that other plans than its own have reserved, by the label of the workers."""
    key_id: str = ""
    """Id of the key; for a token "jwt:<issuer>#<subject>"; empty where there is neither."""
    role: Role = Role.TENANT
    models: tuple[str, ...] = ALL_MODELS
    """Models of the plan that the key may use."""
    networks: tuple[Network, ...] = ()
    """Where the key may be used from; empty is everywhere."""
    expires_unix_s: int | None = None
    """End of the key; a token has none here, its subject gets others."""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.name)

    @property
    def priority_class(self) -> int:
        """0 is the most urgent."""
        return self.plan.priority_class

    @property
    def actor(self) -> str:
        """Who it is, in the audit log."""
        return self.key_id if self.key_id.startswith("jwt:") else f"key:{self.key_id}"

    def as_batch(self) -> Tenant:
        """The tenant as one whose requests wait for all others."""
        return replace(self, plan=self.plan.as_batch())

    def on_tier(self, service_tier: object) -> Tenant:
        """The tenant on the terms of what a request has as its ``service_tier``."""
        return self.as_batch() if service_tier in CHEAP_TIERS else self

    def may_use(self, model: str) -> bool:
        """Whether a model or adapter of this name exists for the tenant and the key."""
        return is_allowed(self.plan.models, model) and is_allowed(self.models, model)

    def terms(
        self, adapter: AdapterRef = BASE_MODEL, nonce: bytes = b"", *, label: str | None = None, kv_key: bytes = b""
    ) -> RequestTerms:
        """Terms of the tenant's requests on ``adapter``; times are to be filled in.

        Args:
            adapter: what they run on.
            nonce: drawn for one request; separates its prompt from every other where the plan says so.
            label: of the tenant in metrics; ``None`` is its name.
            kv_key: seals its KV on disk.
        """
        return RequestTerms(
            tenant=self.id,
            tenant_name=self.name if label is None else label,
            kv_key=kv_key,
            cache_salt=self._salt(nonce),
            priority_class=self.priority_class,
            share=self.plan.share(self.kept_kv),
            adapter=adapter,
        )

    def _salt(self, nonce: bytes) -> bytes:
        policy = self.plan.cache_policy
        if policy is CachePolicy.TENANT:
            return self.cache_salt
        scope = self.key_id.encode() if policy is CachePolicy.KEY else nonce
        return hashlib.sha256(b"\0".join((policy.encode(), self.cache_salt, scope))).digest()
