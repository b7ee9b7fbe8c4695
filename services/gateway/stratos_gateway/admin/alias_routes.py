"""Routes of the admin API for aliases of models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenancy.roles import Role
from stratos.store.models.alias_forms import alias_draft, alias_to_json
from stratos.store.models.alias_record import AliasRecord, AliasTarget
from stratos.store.records.record import Kind, Record
from stratos_gateway.admin.alias_checks import aliases_of, check_not_rolling, checked_alias, choice_of, in_use
from stratos_gateway.admin.fields import only
from stratos_gateway.admin.model_routes import Handler, ModelCaller, ModelHandlers, removed
from stratos_gateway.models.aliases import AliasChoice
from stratos_gateway.models.model_set import ModelSet


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
        models, snapshot = status.models, await self._now()
        check_not_rolling(draft.name, snapshot)
        made = checked_alias(draft, snapshot, models)
        made = replace(made, created_unix_s=await caller.writer.records.now_us() // 1_000_000)
        await status.look()
        written: list[AliasRecord] = []

        def edit(old: Record | None) -> dict[str, Any]:
            written.append(succeeding(made, old, choice_of(snapshot, models), models))
            return alias_to_json(written[-1])

        await caller.writer.change(Kind.ALIAS, made.name, "alias.set", edit, takes_malformed=True)
        return alias_view(written[-1])

    async def _remove(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        models = self._known.models
        name, snapshot = request.path_params["name"], await self._now()
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
        await caller.writer.change(Kind.ALIAS, name, "alias.remove", removed)
        return {"removed": name}


def succeeding(alias: AliasRecord, old: Record | None, choice: AliasChoice, models: ModelSet) -> AliasRecord:
    """The alias with the targets that go on until its own have workers: where its requests go now.

    Args:
        alias: as it is to be.
        old: the version that it follows; that of a name that was no alias is ``None`` or a tombstone.
        choice: says which targets have workers.
        models: say where requests for a model's own name go without an alias.
    """
    known = old.value if old is not None and isinstance(old.value, AliasRecord) else None
    if known is not None:
        before = known.before if known.before and not choice.has_workers(known) else known.targets
    elif (current := models.get(alias.name)) is not None:
        before = (AliasTarget(model=alias.name, digest=current.base.digest),)
    else:
        return alias
    places = {(target.model, target.digest) for target in alias.targets}
    is_new = any((target.model, target.digest) not in places for target in before)
    return replace(alias, before=before if is_new else ())


def alias_view(alias: AliasRecord) -> dict[str, Any]:
    """A record as the admin API shows it."""
    return {"name": alias.name, **alias_to_json(alias)}
