"""Routes of the admin API for roll-outs, for admins of the platform."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.requests import Request

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenancy.roles import Role
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import RolloutPhase, RolloutRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record, value_as
from stratos.store.records.writer import Edit, RecordWriter
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.shelf import ModelArrivals
from stratos_gateway.rollouts.controller import RolloutController, read_rollout
from stratos_gateway.rollouts.judge import ended, shown, verdicts
from stratos_gateway.rollouts.start import named_revision, planned

_MOST_TURNS = 5
"""Of the controller behind a change by a person, which leaves it two writes: weights, and that they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutAccess:
    """All that routes need of this gateway's roll-outs."""

    controller: RolloutController
    models: ModelSet
    arrivals: ModelArrivals
    """Waits a moment for a revision that was just added."""


class RolloutCaller(Protocol):
    """Who asks; the admin API has one."""

    writer: RecordWriter


Handler = Callable[[Any, Request, dict[str, Any]], Awaitable[dict[str, Any]]]


class RolloutRoutes:
    """Handlers.

    Args:
        access: to roll-outs; ``None`` answers 404.
        now: all records, as the store has them.
    """

    def __init__(self, access: RolloutAccess | None, now: Callable[[], Awaitable[FollowedSnapshot]]) -> None:
        self._access = access
        self._now = now

    def table(self) -> list[tuple[str, str, Role, Handler]]:
        """Method, path, least role, handler."""
        return [
            ("GET", "/rollouts", Role.ADMIN, self._list),
            ("GET", "/rollouts/{name:path}", Role.ADMIN, self._show),
            ("PUT", "/rollouts/{name:path}", Role.ADMIN, self._start),
            ("POST", "/rollouts/{name:path}/{verb:str}", Role.ADMIN, self._turn),
        ]

    @property
    def _known(self) -> RolloutAccess:
        if self._access is None:
            raise NotFound("this gateway follows no models")
        return self._access

    async def _list(self, caller: RolloutCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        found = (record.value for record in (await self._now()).of_kind(Kind.ROLLOUT))
        return {"data": [rollout_view(value) for value in found if isinstance(value, RolloutRecord)]}

    async def _show(self, caller: RolloutCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """One roll-out, with what its gates say now."""
        rollout = await self._find(request.path_params["name"])
        counts = await self._known.controller.counted(rollout)
        arms = {name: counts.get(getattr(rollout, name)) for name in ("old", "new")}
        requests = {name: 0 if arm is None else arm.num_requests for name, arm in arms.items()}
        judged = shown(verdicts(rollout, counts)) if rollout.is_counted or rollout.lacks_drift else []
        if rollout.is_active and (lacking := await self._known.controller.lacking(rollout)):
            text = f"gateways: the new revision is not served by {', '.join(lacking)}, or they do not say"
            judged.append({"gate": "gateways", "outcome": "waits", "text": text})
        return {**rollout_view(rollout), "requests": requests, "verdicts": judged}

    async def _start(self, caller: RolloutCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        name, snapshot = request.path_params["name"], await self._now()
        alias = snapshot.get(Kind.ALIAS, name)
        now_us = await caller.writer.records.now_us()
        await self._known.arrivals(*named_revision(name, body))
        made = planned(name, body, alias, self._known.models, caller.writer.actor, now_us)

        def edit(old: Record | None) -> dict[str, Any]:
            last = value_as(RolloutRecord, old)
            if last is not None and last.is_unfinished:
                text = f"a roll-out of {name!r} is {last.phase.value}: wait for its end, or abort it"
                raise BadRequest(text, param="model")
            return rollout_to_json(made)

        await caller.writer.change(Kind.ROLLOUT, name, "rollout.start", edit)
        return await self._settled(caller, name)

    async def _turn(self, caller: RolloutCaller, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Pause, resume or abort."""
        name, verb = request.path_params["name"], request.path_params["verb"]
        if verb not in _VERBS:
            raise NotFound("there is no such route")
        if body:
            raise BadRequest("this takes no fields", param=min(body)[:64])
        await self._find(name)
        now_us, actor = await caller.writer.records.now_us(), caller.writer.actor

        edit = turned(verb, name, now_us, f"{verb} by {actor}")
        await caller.writer.change(Kind.ROLLOUT, name, f"rollout.{verb}", edit)
        view = await self._settled(caller, name)
        if verb != "abort" or await self._known.controller.has_old_workers(await self._find(name)):
            return view
        text = "no live workers of the old revision are known: until it has some, requests go where they went"
        return {**view, "notes": [text]}

    async def _settled(self, caller: RolloutCaller, name: str) -> dict[str, Any]:
        """The roll-out once its weights are written; ``is_applied`` is false while something is waited for.

        A turn that does nothing was overtaken by another controller, which has done the same, or waits.  Raises
        ``DependencyDown`` where the change is recorded and the weights could not be written: every controller goes on.
        """
        for _ in range(_MOST_TURNS):
            _, rollout = await read_rollout(caller.writer, name)
            if rollout is None or rollout.is_applied:
                break
            await self._known.controller.turn(name)
        return rollout_view(await self._find(name))

    async def _find(self, name: str) -> RolloutRecord:
        rollout = value_as(RolloutRecord, (await self._now()).get(Kind.ROLLOUT, name))
        if rollout is None:
            raise NotFound(f"there is no roll-out of {name[:64]!r}")
        return rollout


def rollout_view(rollout: RolloutRecord) -> dict[str, Any]:
    """A record as the admin API shows it."""
    return {"model": rollout.model, "percent": rollout.percent, **rollout_to_json(rollout)}


def turned(verb: str, name: str, now_us: int, reason: str) -> Edit:
    """The edit that pauses, resumes or aborts the roll-out of a model; it raises for one that has ended."""

    def edit(old: Record | None) -> dict[str, Any] | None:
        last = value_as(RolloutRecord, old)
        if last is None:
            raise NotFound(f"there is no roll-out of {name[:64]!r}")
        made = _VERBS[verb](last, now_us, reason)
        return None if made is None else rollout_to_json(made)

    return edit


def _paused(rollout: RolloutRecord, now_us: int, reason: str) -> RolloutRecord | None:
    if rollout.phase is RolloutPhase.PAUSED:
        return None
    return replace(_active(rollout), phase=RolloutPhase.PAUSED, since_us=now_us, reason=reason)


def _resumed(rollout: RolloutRecord, now_us: int, reason: str) -> RolloutRecord | None:
    """The step begins again, with its hold and with counts of its own."""
    if _active(rollout).phase is RolloutPhase.RUNNING:
        return None
    return replace(rollout, phase=RolloutPhase.RUNNING, is_applied=False, since_us=now_us, reason=reason)


def _aborted(rollout: RolloutRecord, now_us: int, reason: str) -> RolloutRecord | None:
    if rollout.phase is RolloutPhase.ABORTED:
        return None
    return ended(_active(rollout), RolloutPhase.ABORTED, now_us, reason)


def _active(rollout: RolloutRecord) -> RolloutRecord:
    if not rollout.is_active:
        raise BadRequest(f"the roll-out of {rollout.model!r} has ended: {rollout.phase.value}", param="model")
    return rollout


_VERBS: dict[str, Callable[[RolloutRecord, int, str], RolloutRecord | None]] = {
    "pause": _paused,
    "resume": _resumed,
    "abort": _aborted,
}
