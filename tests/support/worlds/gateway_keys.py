"""Keys, what is blocked, and content policies and templates, as tests want them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from stratos.common.errors import InvalidApiKey, StratosError
from stratos.core.tenancy.content import ContentPolicy, PromptTemplate
from stratos.core.tenancy.plan import STANDARD
from stratos.core.tenant import Tenant

KEY, OTHER_KEY = "sk-one", "sk-two"
PLAN = replace(STANDARD, priority_class=1, requests_per_min=None, tokens_per_min=None)
"""Of the tenants of ``FakeKeys``."""


def _two_tenants() -> dict[str, Tenant]:
    names = {KEY: "one", OTHER_KEY: "two"}
    return {key: Tenant(name=name, cache_salt=name.encode(), plan=PLAN, key_id=name) for key, name in names.items()}


@dataclass
class FakeKeys:
    """Two tenants with a key each, to be changed by tests."""

    tenants: dict[str, Tenant] = field(default_factory=_two_tenants)
    refused: dict[str, StratosError] = field(default_factory=dict)
    """By key id: why what runs may not go on."""

    async def authenticate(self, key: str) -> Tenant:
        if key not in self.tenants:
            raise InvalidApiKey("the API key is not known")
        return self.tenants[key]

    def refusal(self, tenant: Tenant) -> StratosError | None:
        return self.refused.get(tenant.key_id)

    def change_plan(self, key: str, **changes: Any) -> None:
        """Give the tenant of a key other terms."""
        tenant = self.tenants[key]
        self.tenants[key] = replace(tenant, plan=replace(tenant.plan, **changes))


@dataclass
class FakeBlocks:
    """What is blocked."""

    models: set[str] = field(default_factory=set)
    adapters: set[tuple[str, str]] = field(default_factory=set)

    def is_model_blocked(self, name: str) -> bool:
        return name in self.models

    def is_adapter_blocked(self, owner: str, name: str) -> bool:
        return (owner, name) in self.adapters


@dataclass
class FakeContent:
    """Policies by name, templates by tenant and name."""

    policies: dict[str, ContentPolicy] = field(default_factory=dict)
    templates: dict[tuple[str, str], PromptTemplate] = field(default_factory=dict)

    def policy(self, name: str) -> ContentPolicy | None:
        return self.policies.get(name)

    def template(self, tenant: str, name: str) -> PromptTemplate | None:
        return self.templates.get((tenant, name)) or self.templates.get(("", name))
