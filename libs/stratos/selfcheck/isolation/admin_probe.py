"""The admin API: a tenant reaches nothing there, its owner reaches its own tenant alone."""

from __future__ import annotations

from typing import Any

from stratos.selfcheck.findings import Finding, judged
from stratos.selfcheck.isolation.probe_tenants import Probes

_PREFIX = "/admin/v1"


def probe_admin(probes: Probes) -> Finding:
    """Every route that could show or change what is another's."""
    own, other = probes.names
    refused: list[tuple[str, str, Any]] = [
        ("GET", "/plans", None),
        ("GET", "/declaration", None),
        ("PUT", f"/tenants/{own}", {"plan": "premium"}),
        ("POST", "/blocks", {"model": "isolation-nothing"}),
        ("POST", f"/tenants/{other}/suspend", {}),
        ("DELETE", f"/tenants/{other}", None),
    ]
    hidden: list[tuple[str, str, Any]] = [
        ("GET", f"/tenants/{other}", None),
        ("POST", "/keys", {"tenant": other}),
        ("POST", f"/keys/{probes.foreign_key_id}/rotate", {}),
        ("POST", f"/keys/{probes.foreign_key_id}/suspend", {}),
        ("DELETE", f"/keys/{probes.foreign_key_id}", None),
    ]
    owner, tenant = probes.admin_as_owner, probes.admin_as_tenant
    problems = []
    for caller, name, wanted, requests in (
        (tenant, "a key of a tenant", 403, [*refused, *hidden, ("GET", f"/tenants/{own}", None)]),
        (owner, "an owner", 403, refused),
        (owner, "an owner", 404, hidden),
    ):
        for method, path, body in requests:
            status = caller.send(method, f"{_PREFIX}{path}", body).status_code
            if status != wanted:
                problems.append(f"{name} gets {status} for {method} {path}, not {wanted}")
    for path in ("/keys", "/audit", "/tenants"):
        shown = owner.send("GET", f"{_PREFIX}{path}").json().get("data", [])
        tenants = {str(entry.get("tenant", entry.get("name"))) for entry in shown}
        if tenants != {own}:
            problems.append(f"an owner sees {sorted(tenants)[:5]} in {path}")
    if probes.two.send("GET", "/v1/models").status_code != 200:
        problems.append("the other tenant was changed")
    return judged("admin API, roles", problems, "tenants reach nothing, an owner its own tenant alone")
