"""Tenants that are there for one check alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from stratos.common.errors import StratosError
from stratos.rpc.clients.admin import AdminClient
from stratos.selfcheck.isolation.callers import ProbeCaller

NOTHING = "isolation-nothing"
"""Name of a model that there is not."""
_FREE = {"requests_per_min": None, "tokens_per_min": None, "max_sequences": None, "cache_policy": "tenant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Callers of the check; those of ``one`` and ``two`` may use every model."""

    one: ProbeCaller
    two: ProbeCaller
    plan_bound: ProbeCaller
    """Its plan has no model."""
    key_bound: ProbeCaller
    """A key of ``one`` that has no model."""
    admin_as_tenant: ProbeCaller
    """The admin port with a key of ``one`` that only calls models."""
    admin_as_owner: ProbeCaller
    """The admin port with a key of the role tenant-admin of ``one``."""
    names: tuple[str, str]
    """Names of the tenants one and two."""
    foreign_key_id: str
    """Id of a key of ``two``."""


@contextmanager
def probe_tenants(admin: AdminClient, api_url: str) -> Iterator[Probes]:
    """Make them; they are deleted with their keys in any case."""
    run = secrets.token_hex(4)
    names = [f"isolation-{run}-{part}" for part in ("one", "two", "bound")]
    with ExitStack() as stack:

        def forget(name: str) -> None:
            with suppress(StratosError):
                admin.call("DELETE", f"/tenants/{name}")

        for name, models in zip(names, (["*"], ["*"], [NOTHING]), strict=True):
            stack.callback(forget, name)
            admin.call("PUT", f"/tenants/{name}", {"plan": "standard", "overrides": {**_FREE, "models": models}})

        def caller(url: str, tenant: str, **terms: object) -> tuple[ProbeCaller, str]:
            body = {"tenant": tenant, "name": "check-isolation", "expires_in_s": 3600, **terms}
            made = admin.call("POST", "/keys", body)
            found = ProbeCaller(url, made["key"])
            stack.callback(found.close)
            return found, str(made["key_id"])

        one, two = caller(api_url, names[0])[0], caller(api_url, names[1])
        yield Probes(
            one=one,
            two=two[0],
            plan_bound=caller(api_url, names[2])[0],
            key_bound=caller(api_url, names[0], models=[NOTHING])[0],
            admin_as_tenant=caller(admin.url, names[0])[0],
            admin_as_owner=caller(admin.url, names[0], role="tenant-admin")[0],
            names=(names[0], names[1]),
            foreign_key_id=two[1],
        )
