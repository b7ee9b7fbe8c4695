"""Views by role and model."""

from __future__ import annotations

import dataclasses

from stratos.core.placement import WorkerRole
from stratos.routing.fleet_views import FleetViews
from tests.support.worlds.fleet_samples import IDENTITY, MODEL, make_request, make_view

OTHER = dataclasses.replace(IDENTITY, model_digest="cd" * 32)


def test_a_pool_has_the_workers_of_one_role_and_model() -> None:
    views = FleetViews([make_view("a"), make_view("b", identity=OTHER), make_view("p", WorkerRole.PREFILL)])
    assert [view.ref.worker_id for view in views.pool_of(make_request())] == ["a"]
    assert [view.ref.worker_id for view in views.pool(WorkerRole.PREFILL, MODEL)] == ["p"]
    assert (len(views), views.num_of_role(WorkerRole.DECODE)) == (3, 2)


def test_a_new_view_takes_the_place_of_the_last_one_also_when_the_worker_serves_another_model_now() -> None:
    views = FleetViews([make_view("a"), make_view("b")])
    views.put(busy := make_view("a", num_running=3))
    assert next(iter(views.pool_of(make_request()))) is views.get("inc-a") is busy
    views.put(make_view("a", identity=OTHER))
    assert [view.ref.worker_id for view in views.pool_of(make_request())] == ["b"]
    assert len(views) == 2


def test_a_process_that_is_gone_leaves_nothing() -> None:
    views = FleetViews([make_view("a")])
    views.remove("inc-a")
    views.remove("inc-a")
    assert (len(views), list(views), list(views.pool_of(make_request())), views.get("inc-a")) == (0, [], [], None)


def test_views_that_came_since_are_told_until_a_process_leaves() -> None:
    views = FleetViews([make_view("a"), make_view("b")])
    before = views.num_changes
    views.put(busy := make_view("a", num_running=3))
    assert views.changed(WorkerRole.DECODE, MODEL, before) == [busy]
    views.remove("inc-b")
    assert views.changed(WorkerRole.DECODE, MODEL, before) is None
    assert views.changed(WorkerRole.DECODE, MODEL, views.num_changes) == []
