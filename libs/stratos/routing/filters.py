"""Which workers of a pool may run a request. Each filter names why a worker may not, or passes it.

Eligibility filters look at what the worker is; capacity filters at what it has left.  The difference matters
to the queue: a request that waits for capacity keeps its place in the queue, one that no worker could take does not
stand in the way of others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from stratos.core.features import can_speak_with
from stratos.core.kv import KvIdentity
from stratos.core.placement import Work
from stratos.routing.admission import Ask
from stratos.routing.worker_view import WorkerView


class Rejection(enum.StrEnum):
    """Why a worker was not chosen."""

    OUT = "out"
    MODEL = "model"
    EXCLUDED = "excluded"
    REFUSED = "refused"
    RESERVED = "reserved"
    CLEAR = "clear"
    IDENTITY = "identity"
    PROTOCOL = "protocol"
    FEATURES = "features"
    SPOT = "spot"
    NEVER_FITS = "never_fits"
    ADAPTER_SLOTS = "adapter_slots"
    BATCH_SLOTS = "batch_slots"
    KV_ROOM = "kv_room"


CAPACITY = frozenset(
    {
        Rejection.REFUSED,
        Rejection.RESERVED,
        Rejection.CLEAR,
        Rejection.ADAPTER_SLOTS,
        Rejection.BATCH_SLOTS,
        Rejection.KV_ROOM,
    }
)

Filter = Callable[[WorkerView, Ask], Rejection | None]


def is_live(view: WorkerView, ask: Ask) -> Rejection | None:
    """Answering, ready, not draining."""
    return Rejection.OUT if view.out_reason or view.status.is_draining or view.status.not_ready_reason else None


def speaks_protocol(view: WorkerView, ask: Ask) -> Rejection | None:
    """Its protocol version is near enough to this build's, which is about the gateway's."""
    return None if can_speak_with(view.status.protocol_version) else Rejection.PROTOCOL


def has_features(view: WorkerView, ask: Ask) -> Rejection | None:
    """It offers everything that the request needs."""
    return None if ask.request.required_features <= view.status.features else Rejection.FEATURES


def may_vanish(view: WorkerView, ask: Ask) -> Rejection | None:
    """A worker that may vanish at any moment is for the lowest class alone."""
    return Rejection.SPOT if view.status.is_spot and not ask.request.takes_spot else None


def is_not_excluded(view: WorkerView, ask: Ask) -> Rejection | None:
    """Not one of the incarnations that the gateway has had trouble with."""
    return Rejection.EXCLUDED if view.ref.incarnation in ask.request.excluded_incarnations else None


def has_changed(view: WorkerView, ask: Ask) -> Rejection | None:
    """Its status is another than the one by which a placement there ended in Busy."""
    refused_version = ask.request.refusals.get(view.ref.incarnation)
    return Rejection.REFUSED if refused_version == view.status.version else None


def is_open(view: WorkerView, ask: Ask) -> Rejection | None:
    """Its room is not kept for another request, or for higher classes."""
    if view.ref.incarnation not in ask.closed:
        return None
    return Rejection.CLEAR if view.ref.incarnation in ask.clear else Rejection.RESERVED


def pairs_with(identity: KvIdentity) -> Filter:
    """KV may move between the two: what names its content is equal, its numerics where bits are promised."""

    def has_identity(view: WorkerView, ask: Ask) -> Rejection | None:
        own = view.status.identity
        return None if own is identity or own.misfit(identity) is None else Rejection.IDENTITY

    return has_identity


def has_adapter_slot(view: WorkerView, ask: Ask) -> Rejection | None:
    """The adapter is there, or may be loaded beside those of requests on their way."""
    digest, status = ask.request.terms.adapter.digest, view.status
    if not digest or digest in status.resident_adapters or digest in view.fresh_adapters:
        return None
    return None if len(view.fresh_adapters) < status.engine.num_free_adapter_slots else Rejection.ADAPTER_SLOTS


def has_batch_slot(view: WorkerView, ask: Ask) -> Rejection | None:
    """A place in the batch."""
    return None if ask.num_slots_short(view) <= 0 else Rejection.BATCH_SLOTS


def can_ever_fit(view: WorkerView, ask: Ask) -> Rejection | None:
    """The pool is large enough for it alone."""
    return Rejection.NEVER_FITS if ask.never_fits(view) else None


def has_kv_room(view: WorkerView, ask: Ask) -> Rejection | None:
    """The admission rule."""
    return None if ask.num_blocks_short(view) <= 0 else Rejection.KV_ROOM


DECODE_FILTERS: tuple[Filter, ...] = (
    speaks_protocol,
    has_features,
    may_vanish,
    is_not_excluded,
    can_ever_fit,
    is_live,
    has_changed,
    is_open,
    has_adapter_slot,
    has_kv_room,
    has_batch_slot,
)
"""In this order: what a worker is, whether it lives, what it has left."""


EMBEDDING_FILTERS: tuple[Filter, ...] = (
    speaks_protocol,
    has_features,
    may_vanish,
    is_not_excluded,
    is_live,
    has_changed,
    is_open,
    has_adapter_slot,
    has_batch_slot,
)
"""Blocks are not compared: inputs run one after the other and give theirs back, so only one that is too long for the
pool by itself never fits, and the worker refuses it."""


def is_candidate(view: WorkerView, ask: Ask) -> bool:
    """The worker could run the request, if not now then once it has room."""
    filters = EMBEDDING_FILTERS if ask.request.work is Work.EMBEDDING else DECODE_FILTERS
    return first_rejection(view, ask, filters) in (None, *CAPACITY)


def prefill_filters(identity: KvIdentity) -> tuple[Filter, ...]:
    """Filters of prefill workers for a decode worker with ``identity``; load orders them, it does not exclude."""
    return (is_live, pairs_with(identity), may_vanish, is_not_excluded)


def able_sources(views: Iterable[WorkerView], ask: Ask, identity: KvIdentity) -> list[WorkerView]:
    """Prefill workers that may send KV to a decode worker with ``identity``.

    Nearly all of them pass, and there are as many as decode workers: those that surely do are told in one look.
    """
    checks, excluded = deciding_filters(ask, prefill_filters(identity)), ask.request.excluded_incarnations
    takes_spot = ask.request.takes_spot
    return [
        view
        for view in views
        if (
            view.is_in
            and (view.status.identity is identity or view.status.identity == identity)
            and not (excluded or (view.status.is_spot and not takes_spot))
        )
        or first_rejection(view, ask, checks) is None
    ]


_MOOT: dict[Filter, Callable[[Ask], bool]] = {
    has_features: lambda ask: not ask.request.required_features,
    may_vanish: lambda ask: ask.request.takes_spot,
    is_not_excluded: lambda ask: not ask.request.excluded_incarnations,
    has_changed: lambda ask: not ask.request.refusals,
    is_open: lambda ask: not ask.closed,
}
"""Filters that pass every worker for most requests, and when."""


def deciding_filters(ask: Ask, filters: tuple[Filter, ...]) -> list[Filter]:
    """Filters of ``filters`` that could reject a worker for this request: a decision looks at hundreds of workers."""
    return [check for check in filters if check not in _MOOT or not _MOOT[check](ask)]


def first_rejection(view: WorkerView, ask: Ask, filters: Sequence[Filter]) -> Rejection | None:
    """The first filter's objection, or ``None`` when the worker passes."""
    for check in filters:
        rejection = check(view, ask)
        if rejection is not None:
            return rejection
    return None
