"""Routes of the admin API. Each one says which role it needs; a tenant-admin reaches its own tenant alone.

What another tenant has looks to a tenant-admin as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stratos.common.errors import BadRequest, NotFound, PermissionDenied
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.content.forms import policy_to_json, template_to_json
from stratos.store.counters.guard import StoreId, known
from stratos.store.data_keys import PlatformKeys
from stratos.store.key_store import KeyStore
from stratos.store.keys import Peppers
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.plans import plan_from_json
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos.store.tenancy.deletion import delete_tenant
from stratos.store.tenancy.tenant_keyring import TenantKeyring
from stratos.store.tenants import TenantRecord, TenantRef, block_id, unknown_tenant
from stratos_gateway.access.call_rate import CallRate
from stratos_gateway.admin.alias_routes import AliasRoutes
from stratos_gateway.admin.content_records import (
    ContentRecords,
    check_policy_names,
    checked_policy,
    checked_template,
)
from stratos_gateway.admin.declaration import (
    Declaration,
    DeclaredChange,
    declared,
    differences,
    parse_declaration,
    stored_beside,
)
from stratos_gateway.admin.fields import key_terms, only, seconds, text
from stratos_gateway.admin.key_bounds import check_bounds, check_stays
from stratos_gateway.admin.ledger_routes import LedgerRoutes
from stratos_gateway.admin.lists import StoredLists
from stratos_gateway.admin.model_routes import ModelRoutes, ModelStatus
from stratos_gateway.admin.views import audit_view, plan_view, record_view, tenant_view
from stratos_gateway.choosing.routes import ChoiceRoutes
from stratos_gateway.http.body import OrjsonResponse, read_json
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.row_stream import PartStream, Rows, encoded, encoded_sections
from stratos_gateway.ledger.readings import UsageReadings
from stratos_gateway.rollouts.routes import RolloutAccess, RolloutRoutes

_BODY_TIMEOUT_S = 10.0
_DAY_S = 24 * 3600
_ENTRY_ID = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminStores:
    """Stores that the admin API reads and writes."""

    records: RecordStore
    lists: StoredLists
    peppers: Peppers
    store_id: StoreId
    """Store that is meant; another one, or an emptied one, is neither read nor written."""
    ledger: LedgerStore | None = None
    readings: UsageReadings | None = None
    platform: PlatformKeys | None = None
    """Wraps data keys; without it there are none."""
    models: ModelStatus | None = None
    """How records of models stand at this gateway."""
    rollouts: RolloutAccess | None = None
    """Roll-outs of their revisions."""


class AdminCaller:
    """Who calls, and what it may reach."""

    def __init__(self, tenant: Tenant, stores: AdminStores) -> None:
        self.tenant = tenant
        self.stores = stores
        within = None if self.is_admin else TenantRef(tenant.name, tenant.id)
        writer = RecordWriter(stores.records, actor=tenant.actor, store_id=known(stores.store_id), within=within)
        self.writer = writer
        self.keys = KeyStore(writer, stores.peppers, platform=stores.platform)
        self.content = ContentRecords(writer)
        self.tenants = self.keys.tenants

    @property
    def is_admin(self) -> bool:
        """Whether the key is one of the platform."""
        return self.tenant.role is Role.ADMIN

    def reach(self, tenant: str) -> str:
        """The name of a tenant that the caller may work on.

        Raises:
            NotFound: not for this caller, whether there is one or not.
        """
        if not self.is_admin and tenant != self.tenant.name:
            raise unknown_tenant(tenant)
        return tenant

    async def find(self, name: str) -> TenantRecord:
        """A tenant that the caller may work on; raises ``NotFound``, also for the next one of the caller's name."""
        found = await self.tenants.get(self.reach(name))
        if not self.is_admin and found.id != self.tenant.id:
            raise unknown_tenant(name)
        return found

    async def labels(self) -> Mapping[str, str]:
        """Names of all tenants, or of the caller's own, by id."""
        return await self.stores.lists.tenant_names() if self.is_admin else {self.tenant.id: self.tenant.name}

    async def reach_key(self, key_id: str) -> str:
        """The id of a key of a tenant that the caller may work on; raises ``NotFound``."""
        key = await self.keys.get(key_id)
        if self.is_admin:
            return key_id
        own = await self.find(self.tenant.name)
        if not own.has_key(key.owner) or not self.tenant.role.includes(key.terms.role):
            raise NotFound(f"there is no API key with id {key_id[:40]!r}")
        return key_id


Answer = Mapping[str, Any] | Rows | Response
Handler = Callable[[AdminCaller, Request, dict[str, Any]], Awaitable[Answer]]


class AdminRoutes:
    """Builds the routing table.

    Args:
        authenticate: whose key a request carries.
        stores: what is read and written.
        limits: of bodies and slow clients.
        rate: at which tenants may call; admins of the platform may always.
    """

    def __init__(
        self,
        authenticate: Callable[[Request], Awaitable[Tenant]],
        stores: AdminStores,
        limits: HttpLimits,
        rate: CallRate,
    ) -> None:
        self._authenticate = authenticate
        self._stores = stores
        self._max_body_bytes, self._write_timeout_s = limits.max_body_bytes, limits.write_timeout_s
        self._rate = rate

    def build(self) -> list[BaseRoute]:
        """All routes, below /admin/v1."""
        admin, own = Role.ADMIN, Role.TENANT_ADMIN
        table: list[tuple[str, str, Role, Handler]] = [
            ("GET", "/plans", admin, self._list_plans),
            ("PUT", "/plans/{name}", admin, self._put_plan),
            ("DELETE", "/plans/{name}", admin, self._delete_plan),
            ("GET", "/tenants", own, self._list_tenants),
            ("GET", "/tenants/{name}", own, self._get_tenant),
            ("PUT", "/tenants/{name}", admin, self._put_tenant),
            ("DELETE", "/tenants/{name}", admin, self._delete_tenant),
            ("POST", "/tenants/{name}/{verb:str}", admin, self._suspend_tenant),
            ("GET", "/keys", own, self._list_keys),
            ("POST", "/keys", own, self._create_key),
            ("DELETE", "/keys/{key_id}", own, self._revoke_key),
            ("POST", "/keys/{key_id}/rotate", own, self._rotate_key),
            ("POST", "/keys/{key_id}/{verb:str}", own, self._suspend_key),
            ("GET", "/blocks", admin, self._list_blocks),
            ("POST", "/blocks", admin, self._block),
            ("DELETE", "/blocks", admin, self._unblock),
            ("GET", "/policies", admin, self._list_policies),
            ("PUT", "/policies/{name}", admin, self._put_policy),
            ("DELETE", "/policies/{name}", admin, self._delete_policy),
            ("GET", "/templates", admin, self._list_templates),
            ("PUT", "/templates/{name:path}", admin, self._put_template),
            ("DELETE", "/templates/{name:path}", admin, self._delete_template),
            ("GET", "/data-keys", admin, self._data_keys),
            ("POST", "/data-keys/rewrap", admin, self._rewrap),
            ("GET", "/audit", own, self._audit),
            ("GET", "/declaration", admin, self._declaration),
            ("POST", "/declaration", admin, self._apply),
        ]
        table += LedgerRoutes(self._stores.ledger, self._stores.readings).table()
        table += ModelRoutes(self._stores.models, self._stores.lists.now).table()
        table += AliasRoutes(self._stores.models, self._stores.lists.now).table()
        table += ChoiceRoutes(self._stores.models, self._stores.lists.now).table()
        table += RolloutRoutes(self._stores.rollouts, self._stores.lists.now).table()
        return [
            Route(f"/admin/v1{path}", self._endpoint(role, handler), methods=[method])
            for method, path, role, handler in table
        ]

    def _endpoint(self, role: Role, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            tenant = await self._authenticate(request)
            if not tenant.role.includes(role):
                raise PermissionDenied(f"this needs a key of the role {role.value}")
            if tenant.role is not Role.ADMIN:
                self._rate.pay(tenant.id)
            has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
            body = (
                await read_json(request, max_bytes=self._max_body_bytes, timeout_s=_BODY_TIMEOUT_S) if has_body else {}
            )
            stores = self._stores
            await stores.records.require_marker(known(stores.store_id))
            found = await handler(AdminCaller(tenant, stores), request, body)
            if isinstance(found, Response):
                return found
            if isinstance(found, Mapping):
                return OrjsonResponse(found)
            return PartStream(encoded(found), self._write_timeout_s)

        return answer

    async def _list_plans(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        return {"data": [plan_view(plan) for plan in (await caller.tenants.plans()).values()]}

    async def _put_plan(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        plan = plan_from_json(request.path_params["name"], body)
        check_policy_names({plan.name: plan}, {}, set(await caller.content.policies()))
        await caller.tenants.put_plan(plan)
        return plan_view(plan)

    async def _delete_plan(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        await caller.tenants.delete_plan(request.path_params["name"])
        return {"deleted": True}

    async def _list_tenants(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        if not caller.is_admin:
            return {"data": [tenant_view(await caller.find(caller.tenant.name))]}
        return await self._stores.lists.of_kind(Kind.TENANT, record_view)

    async def _get_tenant(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        return tenant_view(await caller.find(request.path_params["name"]))

    async def _put_tenant(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        name = request.path_params["name"]
        terms = parse_declaration({"tenants": {name: body}}).tenants[name]
        check_stays(caller.tenant, name, is_suspended=terms.is_suspended)
        check_policy_names({}, {name: terms.overrides}, set(await caller.content.policies()))
        await caller.tenants.put(name, plan=terms.plan, overrides=terms.overrides, is_suspended=terms.is_suspended)
        return tenant_view(await caller.tenants.get(name))

    async def _delete_tenant(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        name = request.path_params["name"]
        check_stays(caller.tenant, name, is_deleted=True)
        gone = await delete_tenant(caller.writer, name)
        return {"deleted": True, "id": gone.id, "ledger": gone.id}

    async def _suspend_tenant(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        name, is_suspended = request.path_params["name"], _is_suspension(request)
        check_stays(caller.tenant, name, is_suspended=is_suspended)
        await caller.tenants.suspend(name, is_suspended=is_suspended)
        return tenant_view(await caller.tenants.get(name))

    async def _list_keys(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        lists = self._stores.lists
        if caller.is_admin:
            return await lists.keys(request.query_params.get("tenant"))
        return await lists.keys_of(await caller.find(caller.tenant.name))

    async def _create_key(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        only(body, "tenant", "name", "plan", "role", "models", "networks", "expires_in_s")
        terms = key_terms(body, await caller.keys.now_s(), caller.tenant)
        check_bounds(caller.tenant, terms)
        tenant = caller.reach(text(body, "tenant", caller.tenant.name))
        plan = text(body, "plan") or None
        if plan is not None and not caller.is_admin:
            raise PermissionDenied("plans are given by an admin")
        key = await caller.keys.create_key(
            tenant, text(body, "name"), plan=plan, terms=terms, makes_tenant=caller.is_admin
        )
        return {"key": key, "key_id": key.split("-")[1], "tenant": tenant}

    async def _revoke_key(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        await caller.keys.revoke_key(await caller.reach_key(request.path_params["key_id"]))
        return {"revoked": True}

    async def _rotate_key(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        only(body, "overlap_s")
        overlap_s = seconds(body, "overlap_s")
        key_id = await caller.reach_key(request.path_params["key_id"])
        check_bounds(caller.tenant, (await caller.keys.get(key_id)).terms)
        key = await caller.keys.rotate_key(key_id, overlap_s=_DAY_S if overlap_s is None else overlap_s)
        return {"key": key, "key_id": key.split("-")[1]}

    async def _suspend_key(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        is_suspended = _is_suspension(request)
        key_id = await caller.reach_key(request.path_params["key_id"])
        await caller.keys.suspend_key(key_id, is_suspended=is_suspended, by_platform=caller.is_admin)
        return {"key_id": key_id, "suspended": is_suspended}

    async def _list_blocks(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        return await self._stores.lists.of_kind(Kind.BLOCK, record_view)

    async def _block(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        what = _blocked(body)
        await caller.tenants.block(what, text(body, "reason"))
        return {"what": what}

    async def _unblock(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        await caller.tenants.unblock(_blocked(body))
        return {"unblocked": True}

    async def _list_policies(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        return await self._stores.lists.of_kind(Kind.POLICY, record_view)

    async def _put_policy(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        name = request.path_params["name"]
        policy = checked_policy(name, body)
        await caller.content.put_policy(name, policy)
        return {"name": name, **policy_to_json(policy)}

    async def _delete_policy(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        await caller.content.delete_policy(request.path_params["name"])
        return {"deleted": True}

    async def _list_templates(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        return await self._stores.lists.of_kind(Kind.TEMPLATE, record_view)

    async def _put_template(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        name = request.path_params["name"]
        await caller.content.put_template(name, checked_template(name, body))
        return {"name": name, **template_to_json((await caller.content.templates())[name])}

    async def _delete_template(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        await caller.content.delete_template(request.path_params["name"])
        return {"deleted": True}

    def _platform(self) -> PlatformKeys:
        if self._stores.platform is None:
            raise NotFound("this gateway has no platform key")
        return self._stores.platform

    async def _data_keys(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        self._platform()  # there are none without it
        return await self._stores.lists.of_kind(Kind.DATA_KEY, record_view)

    async def _rewrap(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        num = await TenantKeyring(caller.writer, self._platform()).rewrap()
        return {"rewrapped": num, "platform_key_id": self._platform().current_id}

    async def _audit(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        after = request.query_params.get("after", "0")
        if _ENTRY_ID.fullmatch(after) is None:
            raise BadRequest("after is the entry_id of an entry", param="after")
        page = await self._stores.records.audit_page(after, tenant="" if caller.is_admin else caller.tenant.id)
        return {"data": [audit_view(entry) for entry in page.entries], "next_after": page.next_after}

    async def _declaration(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        return PartStream(encoded_sections(declared(await self._stores.lists.now())), self._write_timeout_s)

    async def _apply(self, caller: AdminCaller, request: Request, body: dict[str, Any]) -> Answer:
        is_dry, wanted = request.query_params.get("dry_run", "false") == "true", parse_declaration(body)
        for name, terms in wanted.tenants.items():
            check_stays(caller.tenant, name, is_suspended=terms.is_suspended)
        changes = differences(wanted, stored_beside(wanted, await self._stores.lists.now()))
        for change in () if is_dry else changes:
            await _make(caller, wanted, change)
        return {"dry_run": is_dry, "changes": [change.as_json() for change in changes]}


async def _make(caller: AdminCaller, wanted: Declaration, change: DeclaredChange) -> None:
    name = change.name
    if change.kind == "policy":
        await caller.content.put_policy(name, wanted.policies[name])
    elif change.kind == "template":
        await caller.content.put_template(name, wanted.templates[name])
    elif change.kind == "plan":
        await caller.tenants.put_plan(wanted.plans[name])
    else:
        terms = wanted.tenants[name]
        await caller.tenants.put(name, plan=terms.plan, overrides=terms.overrides, is_suspended=terms.is_suspended)


def _is_suspension(request: Request) -> bool:
    verb = request.path_params["verb"]
    if verb not in ("suspend", "resume"):
        raise NotFound("there is no such route")
    return bool(verb == "suspend")


def _blocked(body: dict[str, Any]) -> str:
    """``{"model": name}``, or ``{"adapter": name, "tenant": owner}`` with "" for an adapter of all tenants."""
    only(body, "model", "adapter", "tenant", "reason")
    model, adapter = text(body, "model"), text(body, "adapter")
    if bool(model) == bool(adapter):
        raise BadRequest("name either a model or an adapter", param="model")
    return block_id(model) if model else block_id(adapter, text(body, "tenant"))
