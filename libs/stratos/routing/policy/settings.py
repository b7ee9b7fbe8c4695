"""Configuration of policies, and those that have a name; the router's settings hold ``RoutingPoliciesConfig``."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from annotated_types import Ge


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """One policy. Role, model, liveness, exclusions and admission are no matter of policy: they are always checked."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    """The loader of settings then refuses a misspelt key; by default it would drop it."""

    filters: tuple[str, ...] = ()
    """Names of ``stratos.routing.policy.filters``, in order; one that would leave no worker is passed over."""
    scorers: dict[str, float] = field(default_factory=dict)
    """Names of ``stratos.routing.policy.scorers`` with their weights; scores lie in [0, 1]."""
    picker: str = "best"
    """Name of ``stratos.routing.policy.pickers``."""


NAMED = MappingProxyType(
    {
        "round_robin": PolicyConfig(picker="round_robin"),
        "least_loaded": PolicyConfig(scorers={"load": 1.0}),
        "session_affinity": PolicyConfig(scorers={"session": 1.0}),
        "prefix": PolicyConfig(
            scorers={
                "first_token": 2.0,
                "free_slots": 1.0,
                "adapter": 0.5,
                "prefix": 0.5,
                "session": 0.1,
                "clear": 0.5,
            }
        ),
        "balanced": PolicyConfig(scorers={"load": 2.0, "free_kv": 1.0, "adapter": 1.0, "clear": 0.5}),
    }
)
"""Policies that have a name without being configured; docs/routing.md compares them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPoliciesConfig:
    """Which policy places the requests of which pool."""

    default: str = "prefix"
    """Policy of every pool that ``pools`` does not name."""
    pools: dict[str, str] = field(default_factory=dict)
    """Pool -> policy. A pool is "decode/DIGEST" (of a model), "*/DIGEST", or "decode"; the first of them that is named
    counts, and likewise for "prefill"."""
    custom: dict[str, PolicyConfig] = field(default_factory=dict)
    """Policies of your own: name -> {"filters": [...], "scorers": {name: weight}, "picker": name}."""
    long_prompt_tokens: Annotated[int, Ge(1)] = 2048
    """Prompts from this length on are long: the scorer queued_tokens spreads long ones by the tokens that are queued,
    and takes short ones only from workers where at least as much is queued."""
    max_indexed_blocks: Annotated[int, Ge(1)] = 65536
    """Blocks of one worker's prefix cache that the router remembers at most, at about 150 bytes each."""
