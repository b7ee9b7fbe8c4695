"""All checks, on tenants of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratos.common.errors import NotFound
from stratos.rpc.clients.admin import AdminClient
from stratos.selfcheck.findings import Finding
from stratos.selfcheck.isolation.acl_probe import probe_acl
from stratos.selfcheck.isolation.admin_probe import probe_admin
from stratos.selfcheck.isolation.cache_probe import MAX_PROMPT_CHARS, judge_counts, judge_times, probe_caches
from stratos.selfcheck.isolation.ledger_probe import probe_ledger
from stratos.selfcheck.isolation.probe_tenants import probe_tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationCheck:
    """Scope of one check."""

    api_url: str
    """Address of the OpenAI API, without /v1."""
    model: str = ""
    """Empty takes the first one."""
    private: Sequence[str] = ()
    """Names of adapters of real tenants, which the probes must not see."""
    num_rounds: int = 7


def run_check(admin: AdminClient, check: IsolationCheck) -> list[Finding]:
    """Make the tenants, probe, delete the tenants.

    Raises:
        StratosError: the platform refuses a probe, or does not answer.
    """
    with probe_tenants(admin, check.api_url) as probes:
        models = probes.one.models()
        able = {str(m["id"]): m for m in models if "completions" in m.get("capabilities", ["completions"])}
        model = check.model or next(iter(able), "")
        if model not in able:
            raise NotFound(f"there is no model {model!r} that completes text")
        num_chars = min(MAX_PROMPT_CHARS, int(able[model].get("max_model_len", MAX_PROMPT_CHARS)) // 2)
        rounds = probe_caches(probes.one, probes.two, model, num_chars, check.num_rounds)
        return [
            judge_counts(rounds),
            judge_times(rounds),
            probe_acl(probes, [str(m["id"]) for m in models], check.private),
            probe_admin(probes),
            probe_ledger(probes),
        ]
