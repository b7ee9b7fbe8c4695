"""Routes of the admin API for aliases of models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenancy.roles import Role
from stratos.store.models.alias_forms import alias_draft, alias_to_json
from stratos.store.models.alias_record import AliasRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record
from stratos_gateway.admin.alias_checks import aliases_of, checked_alias
from stratos_gateway.admin.fields import only
from stratos_gateway.admin.model_routes import Handler, ModelCaller, ModelStatus, removed


class AliasRoutes:
    """Handlers, for admins of the platform.

    Args:
        status: of this gateway's models; ``None`` answers 404.
        now: all records, as the store has them.
    """

    def __init__(self, status: ModelStatus | None, now: Callable[[], Awaitable[FollowedSnapshot]]) -> None:
        self._status = status
        self._now = now

    def table(self) -> list[tuple[str, str, Role, Handler]]:
        """Method, path, least role, handler."""
        return [
            ("GET", "/aliases", Role.ADMIN, self._list),
            ("PUT", "/aliases/{name:path}", Role.ADMIN, self._put),
            ("DELETE", "/aliases/{name:path}", Role.ADMIN, self._remove),
        ]

    async def _list(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        return {"data": [alias_view(alias) for alias in aliases_of(await self._now()).values()]}

    async def _put(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Let a name stand for other revisions from now on, in one step at each gateway; requests that run stay."""
        if self._status is None:
            raise NotFound("this gateway follows no models")
        only(body, "targets", "sticky")
        draft = alias_draft(request.path_params["name"], body)
        made = checked_alias(draft, await self._now(), self._status.models)
        made = replace(made, created_unix_s=await caller.writer.records.now_us() // 1_000_000)
        written: list[AliasRecord] = []

        def edit(old: Record | None) -> dict[str, Any]:
            written.append(succeeding(made, old))
            return alias_to_json(written[-1])

        await caller.writer.change(Kind.ALIAS, made.name, "alias.set", edit, takes_malformed=True)
        return alias_view(written[-1])

    async def _remove(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        name = request.path_params["name"]
        aliases = aliases_of(await self._now())
        if name not in aliases:
            raise NotFound(f"there is no alias {name[:64]!r}")
        users = [a.name for a in aliases.values() if any(t.model == name and not t.digest for t in a.targets)]
        is_model = self._status is not None and self._status.models.get(name) is not None
        if users and not is_model:
            raise BadRequest(f"the alias {users[0]!r} names it: change or remove that first", param="name")
        await caller.writer.change(Kind.ALIAS, name, "alias.remove", removed)
        return {"removed": name}


def succeeding(alias: AliasRecord, old: Record | None) -> AliasRecord:
    """The alias as it follows another version of itself, whose targets go on until the new ones have workers."""
    known = old.value if old is not None and isinstance(old.value, AliasRecord) else None
    if known is None:
        return alias
    return replace(alias, before=known.before if known.targets == alias.targets else known.targets)


def alias_view(alias: AliasRecord) -> dict[str, Any]:
    """A record as the admin API shows it."""
    return {"name": alias.name, **alias_to_json(alias)}
