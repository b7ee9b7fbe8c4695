"""Policies that have a name without being configured; docs/routing.md compares them."""

from __future__ import annotations

from types import MappingProxyType

from stratos.routing.policy.settings import PolicyConfig

NAMED = MappingProxyType(
    {
        "round_robin": PolicyConfig(picker="round_robin"),
        "least_loaded": PolicyConfig(scorers={"load": 1.0}),
        "session_affinity": PolicyConfig(scorers={"session": 1.0}),
        "prefix": PolicyConfig(
            scorers={"first_token": 2.0, "free_slots": 1.0, "adapter": 0.5, "prefix": 0.5, "session": 0.1}
        ),
        "balanced": PolicyConfig(scorers={"load": 2.0, "free_kv": 1.0, "adapter": 1.0}),
    }
)
