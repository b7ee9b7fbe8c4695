"""Routes of the admin API for aliases of models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request

from stratos.common.errors import BadRequest, DependencyDown, NotFound
from stratos.core.tenancy.roles import Role
from stratos.store.models.alias_forms import alias_draft, alias_to_json
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.choice_forms import check_not_auto
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record
from stratos.store.records.writer import Tombstone
from stratos_gateway.admin.alias_checks import check_not_rolling, checked_alias, choice_of, in_use
from stratos_gateway.admin.fields import only
from stratos_gateway.admin.model_routes import Handler, ModelCaller, ModelHandlers, removed
from stratos_gateway.models.aliases import aliases_of, succeeding
from stratos_gateway.models.model_set import ModelSet

_MOST_TRIES = 10
_CHANGES = "others change this alias all the time; try again"


class AliasRoutes(ModelHandlers):
    """Handlers for aliases."""

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
        status = self._known
        only(body, "targets", "sticky")
        draft = alias_draft(request.path_params["name"], body)
        check_not_auto(draft.name)
        await status.look()
        for _ in range(_MOST_TRIES):
            snapshot = await self._now()
            check_not_rolling(draft.name, snapshot)
            made = checked_alias(draft, snapshot, status.models)
            made = replace(made, created_unix_s=await caller.writer.records.now_us() // 1_000_000)
            edit = _Unless(snapshot, made, status.models)
            if await caller.writer.change(Kind.ALIAS, made.name, "alias.set", edit, takes_malformed=True):
                return alias_view(edit.written)
        raise DependencyDown(_CHANGES)

    async def _remove(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        name = request.path_params["name"]
        for _ in range(_MOST_TRIES):
            snapshot = await self._now()
            self._check_removable(name, snapshot)

            def edit(old: Record | None, seen: FollowedSnapshot = snapshot) -> Tombstone | None:
                return None if has_changed(seen, old) else removed(old)

            if await caller.writer.change(Kind.ALIAS, name, "alias.remove", edit):
                return {"removed": name}
        raise DependencyDown(_CHANGES)

    def _check_removable(self, name: str, snapshot: FollowedSnapshot) -> None:
        models = self._known.models
        check_not_rolling(name, snapshot)
        choice = choice_of(snapshot, models)
        if choice.source.find(name) is None:
            raise NotFound(f"there is no alias {name[:64]!r}")
        users = [
            alias.name
            for alias in choice.source.list()
            if any(target.model == name and not target.digest for target in in_use(alias, choice))
        ]
        if users and models.get(name) is None:
            raise BadRequest(f"the alias {users[0]!r} names it: change or remove that first", param="name")


class _Unless:
    """The edit that sets an alias, unless it was changed after it was checked: by a roll-out that began, say.

    Args:
        snapshot: by which it was checked.
        made: as it is to be.
        models: of this gateway.
    """

    def __init__(self, snapshot: FollowedSnapshot, made: AliasRecord, models: ModelSet) -> None:
        self._snapshot, self._made, self._models = snapshot, made, models
        self.written = made

    def __call__(self, old: Record | None) -> dict[str, Any] | None:
        if has_changed(self._snapshot, old):
            return None
        self.written = succeeding(self._made, old, choice_of(self._snapshot, self._models), self._models)
        return alias_to_json(self.written)


def has_changed(snapshot: FollowedSnapshot, old: Record | None) -> bool:
    """Whether an alias is another version than a snapshot has; one that cannot be read may be replaced."""
    if old is None:
        return False
    seen = snapshot.get(Kind.ALIAS, old.id)
    return old.version != (0 if seen is None else seen.version)


def alias_view(alias: AliasRecord) -> dict[str, Any]:
    """A record as the admin API shows it."""
    return {"name": alias.name, **alias_to_json(alias)}
