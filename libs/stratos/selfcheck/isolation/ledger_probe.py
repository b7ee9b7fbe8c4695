"""Usage ledger: each probe tenant must see what it asked for itself, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from stratos.common.errors import DependencyDown
from stratos.selfcheck.findings import Finding, judged, unknown
from stratos.selfcheck.isolation.callers import ProbeCaller
from stratos.selfcheck.isolation.probe_tenants import Probes

WAIT_S = 15.0
"""Entries are written in batches, after the request."""
_POLL_S = 0.2


def probe_ledger(probes: Probes) -> Finding:
    """Compare what answers said with what the ledger says, after the other probes."""
    check, one, two = "usage ledger", probes.one, probes.two
    if one.send("GET", "/v1/usage").status_code == 404:
        return unknown(check, "this gateway keeps no ledger")
    deadline = time.monotonic() + WAIT_S
    while _total(one)["requests"] < one.num_completed or _total(two)["requests"] < two.num_completed:
        if time.monotonic() > deadline:
            return unknown(check, "tenants do not see their own usage, so nothing is shown")
        time.sleep(_POLL_S)
    problems = [problem for caller in (one, two, probes.plan_bound) for problem in _problems(caller)]
    counts = (
        f"{one.num_completed} requests of tenant one, {two.num_completed} of tenant two, each seen by its own alone"
    )
    return judged(check, problems, counts)


def _problems(caller: ProbeCaller) -> Iterator[str]:
    found = _total(caller)
    for measure, own in (("requests", caller.num_completed), ("prompt_tokens", caller.num_prompt_tokens)):
        if found[measure] != own:
            yield f"a tenant sees {found[measure]} {measure}, and has {own}"
    rows = _read(caller, group_by="key")["data"]
    if strangers := {str(row["key_id"]) for row in rows} - {caller.key_id}:
        yield f"a tenant sees the usage of the keys {sorted(strangers)[:3]}"


def _total(caller: ProbeCaller) -> dict[str, Any]:
    total: dict[str, Any] = _read(caller)["total"]
    return total


def _read(caller: ProbeCaller, **query: str) -> dict[str, Any]:
    """Usage; the store may be slow for a moment.

    Raises:
        DependencyDown: for longer.
    """
    deadline = time.monotonic() + WAIT_S
    while (answer := caller.send("GET", "/v1/usage", **query)).status_code != 200:
        if time.monotonic() > deadline:
            raise DependencyDown(f"the ledger cannot be read: status {answer.status_code}")
        time.sleep(_POLL_S)
    found: dict[str, Any] = answer.json()
    return found
