"""Pools of plans: workers that serve a plan first, and those where another plan has KV reserved.

    spot workers, for the lowest class  ->  the rest, in this order:
    workers of the plan's own pools  ->  workers where nothing is reserved for others  ->  any that admission passes

A worker counts in all but the last only while its batch has a free slot: no request waits in a pool while there is room
elsewhere.  What is reserved is a matter of admission, see ``Ask``; here it is only avoided.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratos.routing.admission import Ask
from stratos.routing.worker_view import WorkerView


def preferred(views: Sequence[WorkerView], ask: Ask) -> Sequence[WorkerView]:
    """Narrow the workers that may run a request to those that its plan puts first."""
    share = ask.request.terms.share
    if ask.request.takes_spot:
        views = [view for view in views if view.status.is_spot and has_slot_now(view, ask.num_slots)] or views
    if not (share.pools or share.kept_kv):
        return views
    now = [view for view in views if has_slot_now(view, ask.num_slots)]
    own = [view for view in now if view.status.pool in share.pools]
    return own or [view for view in now if view.status.pool not in share.kept_kv] or views


def preferred_sources(views: Sequence[WorkerView], ask: Ask) -> Sequence[WorkerView]:
    """The same of workers that compute prompts: load orders them, and nothing is reserved there."""
    if ask.clear:
        views = [view for view in views if view.ref.incarnation not in ask.clear] or views
    pools = ask.request.terms.share.pools
    return [view for view in views if view.status.pool in pools] or views if pools else views


def has_slot_now(view: WorkerView, num_slots: int) -> bool:
    """The batch has room, without those that may wait for it."""
    most = view.status.max_num_seqs
    return most == 0 or view.num_seqs + min(num_slots, most) <= most
