"""Routes of the admin API for models: records, and how each one stands at this gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from starlette.requests import Request

from stratos.common.errors import BadRequest, InvalidCheckpoint, NotFound, StratosError
from stratos.core.placement import WorkerRole
from stratos.core.tenancy.roles import Role
from stratos.store.models.choice_forms import check_not_auto
from stratos.store.models.forms import model_from_json, model_id, model_to_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.names import check_model_place
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos_gateway.admin.alias_checks import check_unnamed, choice_of, names_of
from stratos_gateway.admin.fields import text
from stratos_gateway.admin.model_terms import check_same, check_size, terms_of
from stratos_gateway.models.aliases import aliases_of
from stratos_gateway.models.live_revisions import LiveWorkers, can_take, look_at
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.shelf import ModelShelf, Phase

MIN_DIGEST_DIGITS = 8
"""Of a digest that is cut off."""


class ModelStatus:
    """Standing of models at a gateway, beside their records.

    Args:
        shelf: loads what records name.
        models: what is served.
        known_workers: asks a router for live workers, and for all that have said which model they serve.
    """

    def __init__(
        self,
        shelf: ModelShelf,
        models: ModelSet,
        known_workers: Callable[[], Awaitable[tuple[LiveWorkers, LiveWorkers]]],
    ) -> None:
        self.shelf = shelf
        self.models = models
        self.known_workers = known_workers

    async def live_workers(self) -> LiveWorkers:
        """Live workers of each model; raises ``StratosError`` where no router answers."""
        live, _ = await self.known_workers()
        return live

    async def look(self) -> None:
        """See now which revisions have workers; without a router nothing changes."""
        with contextlib.suppress(StratosError):
            look_at(self.models, await self.live_workers())

    async def rows(self) -> list[dict[str, Any]]:
        """Every revision, those of settings first; ``workers`` is null where no router answers."""
        live: LiveWorkers | None = None
        seen: LiveWorkers = {}
        with contextlib.suppress(StratosError):
            live, seen = await self.known_workers()
        return [self._finished(row, live) | _ready(row, live, seen) for row in (*self._fixed(), *self._recorded())]

    def _fixed(self) -> Iterator[dict[str, Any]]:
        recorded = {placed.wanted.record.digest for placed in self.shelf.placed.values()}
        for model in self.models.revisions:
            if model.base.digest not in recorded:
                facts = {"name": model.base.name, "digest": model.base.digest, "size": model.base.size}
                yield facts | {"created_unix_s": model.base.created_unix_s, "from": "settings", "state": Phase.SERVING}

    def _recorded(self) -> Iterator[dict[str, Any]]:
        for placed in self.shelf.placed.values():
            state = {"from": "record", "state": placed.phase, "reason": placed.reason}
            yield model_view(placed.wanted.record) | state

    def _finished(self, row: dict[str, Any], live: LiveWorkers | None) -> dict[str, Any]:
        """Add facts of the set and of routers: whether new requests get the revision, its workers, and whether those
        can take a request, which is null where no router answers."""
        current = self.models.get(row["name"])
        workers = None if live is None else {r.value: live.get(row["digest"], {}).get(r, 0) for r in WorkerRole}
        is_current = current is not None and current.base.digest == row["digest"]
        model = self.models.of_digest(row["digest"])
        is_live = None if live is None else model is not None and can_take(model, live)
        return {**row, "current": is_current, "workers": workers, "live": is_live}


class ModelCaller(Protocol):
    """Who asks; ``routes.AdminCaller`` is the one of the admin API."""

    writer: RecordWriter


def _ready(row: Mapping[str, Any], live: LiveWorkers | None, seen: LiveWorkers) -> dict[str, Any]:
    """How many of a revision's workers can take requests, of those that have said that they serve it: "2/3"."""
    if live is None:
        return {"ready": None}
    num_live, num_seen = (sum(workers.get(row["digest"], {}).values()) for workers in (live, seen))
    return {"ready": f"{num_live}/{num_seen}"}


Handler = Callable[[Any, Request, dict[str, Any]], Awaitable[dict[str, Any]]]


class ModelHandlers:
    """Handlers for models or for their aliases, for admins of the platform.

    Args:
        status: of this gateway's models; ``None`` answers 404.
        now: all records, as the store has them.
    """

    def __init__(self, status: ModelStatus | None, now: Callable[[], Awaitable[FollowedSnapshot]]) -> None:
        self._status = status
        self._now = now

    @property
    def _known(self) -> ModelStatus:
        if self._status is None:
            raise NotFound("this gateway follows no models")
        return self._status


class ModelRoutes(ModelHandlers):
    """Handlers for models."""

    def table(self) -> list[tuple[str, str, Role, Handler]]:
        """Method, path, least role, handler."""
        return [
            ("GET", "/models", Role.ADMIN, self._list),
            ("POST", "/models", Role.ADMIN, self._add),
            ("DELETE", "/models/{name:path}", Role.ADMIN, self._remove),
        ]

    async def _list(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        status, snapshot = self._known, await self._now()
        aliases, choice = aliases_of(snapshot), choice_of(snapshot, status.models)
        rows = await status.rows()
        for row in rows:
            row["aliases"] = dict(names_of(aliases, row["name"], row["digest"]))
            if (split := aliases.get(row["name"])) is not None:
                row["current"] = row["digest"] in {served.base.digest for _, served in choice.open_now(split)}
        return {"data": rows}

    async def _add(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Record a revision that this gateway can load; it is the newest one of its name from then on."""
        status, given = self._known, {field: body[field] for field in body if field not in ("name", "digest")}
        name, digest = text(body, "name"), text(body, "digest")
        record_id, snapshot = model_id(name, digest), await self._now()
        check_not_auto(name)
        record = model_from_json(record_id, terms_of(name, digest, snapshot, status.models) | given)
        record = replace(record, created_unix_s=await caller.writer.records.now_us() // 1_000_000)
        _check_names(record, snapshot, status.models)
        if "size" in given:
            check_size(record.size, snapshot)
        try:
            model = await status.shelf.check(record)
        except InvalidCheckpoint as error:
            raise BadRequest(f"model {record.name!r} cannot be served: {error.message}", param="text_digest") from None
        if (fixed := status.models.fixed(digest)) is not None:
            check_same(model, fixed, given)
        value = model_to_json(record)
        await caller.writer.change(Kind.MODEL, record_id, "model.add", lambda old: value, takes_malformed=True)
        return model_view(record)

    async def _remove(self, caller: ModelCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Take a revision away, or all of a name; requests that run on it go on."""
        status = self._known
        name, digest = request.path_params["name"], request.query_params.get("digest", "")
        if digest and len(digest) < MIN_DIGEST_DIGITS:
            raise BadRequest(f"a digest has at least {MIN_DIGEST_DIGITS} digits", param="digest")
        found = [
            record.id
            for record in (await self._now()).of_owner(Kind.MODEL, name).values()
            if not record.is_deleted and record.id.startswith(model_id(name, digest))
        ]
        if not found:
            raise NotFound(f"there is no record of a model {name[:64]!r} with this digest")
        digests = [record_id.rpartition("/")[2] for record_id in found]
        await status.look()
        check_unnamed(name, digests, await self._now(), status.models)
        for record_id in found:
            await caller.writer.change(Kind.MODEL, record_id, "model.remove", removed)
        return {"removed": digests}


def model_view(record: ModelRecord) -> dict[str, Any]:
    """A record as the admin API shows it."""
    return {"name": record.name, "digest": record.digest, **model_to_json(record)}


def removed(old: Record | None) -> Tombstone | None:
    """The edit that deletes a record."""
    return None if old is None or old.is_deleted else Tombstone({})


def _check_names(record: ModelRecord, snapshot: FollowedSnapshot, models: ModelSet) -> None:
    """Refuse a digest that has another name, and a name that an adapter or an alias has; raises ``BadRequest``."""
    recorded = [found.value for found in snapshot.of_kind(Kind.MODEL)]
    same = {m.name for m in recorded if isinstance(m, ModelRecord) and m.digest == record.digest}
    if (served := models.of_digest(record.digest)) is not None:
        same.add(served.base.name)
    known = [found.value for kind in (Kind.ADAPTER, Kind.ALIAS) for found in snapshot.of_kind(kind)]
    check_model_place(record.name, same, known)
