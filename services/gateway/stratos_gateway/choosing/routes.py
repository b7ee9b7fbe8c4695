"""Routes of the admin API for rules of the model ``auto``: those of all tenants, and those of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from starlette.requests import Request

from stratos.common.errors import BadRequest, NotFound
from stratos.core.adapter import Adapter
from stratos.core.tenancy.roles import Role
from stratos.store.models.choice_forms import check_choice_id, choice_from_json, choice_to_json
from stratos.store.models.choice_rules import AUTO, ChoiceRules
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record, value_as
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.tenancy.tenant_store import TenantStore
from stratos_gateway.models.aliases import aliases_of, revisions_of
from stratos_gateway.models.model_set import ModelSet

VERBS: Mapping[str, bool] = {"on": True, "off": False}


class KnownModels(Protocol):
    """Models that a gateway serves."""

    models: ModelSet


class ChoiceCaller(Protocol):
    """Who asks; ``admin.routes.AdminCaller`` is the one of the admin API."""

    writer: RecordWriter


Handler = Callable[[Any, Request, dict[str, Any]], Awaitable[dict[str, Any]]]


class ChoiceRoutes:
    """Handlers for rules, for admins of the platform.

    Args:
        status: of this gateway's models; ``None`` answers 404.
        now: all records, as the store has them.
    """

    def __init__(self, status: KnownModels | None, now: Callable[[], Awaitable[FollowedSnapshot]]) -> None:
        self._status = status
        self._now = now

    def table(self) -> list[tuple[str, str, Role, Handler]]:
        """Method, path, least role, handler."""
        return [
            ("GET", "/choices", Role.ADMIN, self._list),
            ("PUT", "/choices/{name:path}", Role.ADMIN, self._put),
            ("DELETE", "/choices/{name:path}", Role.ADMIN, self._remove),
            ("POST", "/choices/{name:path}/{verb:str}", Role.ADMIN, self._turn),
        ]

    async def _list(self, caller: ChoiceCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        found = ((record.id, value_as(ChoiceRules, record)) for record in (await self._now()).of_kind(Kind.CHOICE))
        return {"data": [choice_view(name, rules) for name, rules in found if rules is not None]}

    async def _put(self, caller: ChoiceCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Let rules choose from now on; requests that run stay where they are."""
        name = request.path_params["name"]
        made = choice_from_json(name, body)
        if self._status is None:
            raise NotFound("this gateway follows no models")
        check_models(made, await self._now(), self._status.models)
        await _change(caller.writer, name, "choice.set", lambda old: choice_to_json(made))
        return choice_view(name, made)

    async def _turn(self, caller: ChoiceCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Send every request to the default, or let rules choose again."""
        name, verb = request.path_params["name"], request.path_params["verb"]
        if verb not in VERBS:
            raise NotFound("there is no such route")
        turned = list[ChoiceRules]()

        def edit(old: Record | None) -> dict[str, Any]:
            if (rules := value_as(ChoiceRules, old)) is None:
                raise _no_rules(name)
            turned[:] = [replace(rules, is_on=VERBS[verb])]
            return choice_to_json(turned[0])

        await _change(caller.writer, name, f"choice.{verb}", edit)
        return choice_view(name, turned[0])

    async def _remove(self, caller: ChoiceCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        name = request.path_params["name"]

        def edit(old: Record | None) -> Tombstone:
            if old is None or old.is_deleted:
                raise _no_rules(name)
            return Tombstone({})

        owner = await TenantStore(caller.writer).ref_or_label(check_choice_id(name))
        await caller.writer.change(Kind.CHOICE, name, "choice.remove", edit, tenant=owner)
        return {"removed": name}


def check_models(rules: ChoiceRules, snapshot: FollowedSnapshot, models: ModelSet) -> None:
    """Refuse rules that name no model, no alias and no adapter, and a model that has their name itself.

    Raises:
        BadRequest: ``param`` says where.
    """
    named = {*revisions_of(snapshot, models).values(), *aliases_of(snapshot)}
    if AUTO in named:
        raise BadRequest(f"a model or an alias has the name {AUTO!r}: remove it first", param="name")
    adapters = (record.value for record in snapshot.of_kind(Kind.ADAPTER))
    named |= {adapter.name for adapter in adapters if isinstance(adapter, Adapter)}
    if unknown := sorted(rules.models - named):
        raise BadRequest(f"there is no model, no alias and no adapter {unknown[0][:64]!r}", param="rules")


def choice_view(name: str, rules: ChoiceRules) -> dict[str, Any]:
    """Rules as the admin API shows them."""
    return {"name": name, "is_on": rules.is_on, **choice_to_json(rules)}


async def _change(
    writer: RecordWriter, name: str, action: str, edit: Callable[[Record | None], dict[str, Any]]
) -> None:
    """Write rules while the tenant lives that has them; raises ``NotFound`` where there is no such one."""
    owner, replaces = await TenantStore(writer).ref(check_choice_id(name)), action == "choice.set"
    condition = owner.while_live
    await writer.change(Kind.CHOICE, name, action, edit, tenant=owner, condition=condition, takes_malformed=replaces)


def _no_rules(name: str) -> NotFound:
    return NotFound(f"there are no rules {name[:64]!r}")
