"""Which revisions have live workers, asked of a router where a name has several revisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from stratos.common.background import happens
from stratos.common.errors import StratosError
from stratos.core.placement import WorkerRole
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel

_log = logging.getLogger(__name__)
LiveWorkers = Mapping[str, Mapping[WorkerRole, int]]
"""Digest of a model -> live workers of each role."""


async def watch_revisions(models: ModelSet, live_workers: Callable[[], Awaitable[LiveWorkers]], poll_s: float) -> None:
    """Root task: tell the set which revisions may be chosen, until cancelled; where no router tells, nothing changes.

    It looks once in a while, and at once when a revision came or went.
    """
    changed, said = asyncio.Event(), ""
    models.on_change(changed.set)
    while True:
        changed.clear()
        if models.has_choice:
            said = await _look(models, live_workers, said)
        await happens(changed, poll_s)


async def _look(models: ModelSet, live_workers: Callable[[], Awaitable[LiveWorkers]], said: str) -> str:
    """Look once; returns why it could not, which is logged where it is not what was said before."""
    try:
        look_at(models, await live_workers())
    except StratosError as error:
        if error.message != said:
            _log.warning("which revisions have workers is not known, so names stay where they are: %s", error.message)
        return error.message
    if said:
        _log.info("it is known again which revisions have workers")
    return ""


def look_at(models: ModelSet, live: LiveWorkers) -> None:
    """Tell the set which revisions can take a request."""
    models.see_live({model.base.digest for model in models.revisions if can_take(model, live)})


def can_take(model: ServedModel, live: LiveWorkers) -> bool:
    """Whether a revision has workers for a request: a model that only embeds runs on prefill workers."""
    role = WorkerRole.DECODE if model.base.can_generate else WorkerRole.PREFILL
    return live.get(model.base.digest, {}).get(role, 0) > 0
