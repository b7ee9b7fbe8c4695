"""Ids of hand-offs: a router mints them, and they say which one did.

A worker learns from them whose placements reach it, so that routers know from its status whether they are alone there.
"""

from __future__ import annotations

from stratos.common.ids import new_id


def new_handoff_id(router: str) -> str:
    """A fresh id such as ``handoff-3f2a...@inc-77b1...``.

    Args:
        router: incarnation of the router that places the request.
    """
    return f"{new_id('handoff')}@{router}"


def router_of(handoff_id: str) -> str:
    """The router that placed the request; empty when the id does not say."""
    return handoff_id.partition("@")[2]
