"""Digests of models by name: learned from workers, kept for zero, doubted once a sleeping model was changed."""

from __future__ import annotations

from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.core.placement import WorkerRole
from stratos.planning.settings import PoolBounds
from stratos_autoscaler.backends.base import BackendWorker, NotedDigest
from stratos_autoscaler.models import ModelDigests
from tests.support.worlds.fleet_samples import MODEL, make_status

POOLS = {
    name: PoolBounds(role=WorkerRole.DECODE, model_name=name, deployment=name, min_workers=0, max_workers=2)
    for name in ("chat", "code")
}
OLD, OTHER, NEW = "old", "other", "new"


def fleet(*asked: str, live: str = "") -> Fleet:
    queues = tuple(
        QueueDepth(model_digest=digest, priority_class=0, num_requests=1, num_tokens=1, oldest_s=0.0)
        for digest in asked
    )
    status = make_status(live, WorkerRole.DECODE)
    workers = (FleetWorker(ref=status.ref, status=status, is_live=True),) if live else ()
    return Fleet(queues=queues, workers=workers)


def digest_of(digests: ModelDigests, name: str) -> str:
    key = digests.key(POOLS[name])
    assert key is not None
    return key.model_digest


def test_a_model_whose_files_changed_in_its_sleep_wakes_for_the_new_ones() -> None:
    kept = {"chat": NotedDigest(OLD, is_doubted=True), "code": NotedDigest(OTHER)}
    digests = ModelDigests(list(POOLS.values()))
    assert digests.learn(fleet(NEW), (), kept) == {}, "a guess is not kept"
    assert (digest_of(digests, "chat"), digest_of(digests, "code")) == (NEW, OTHER)


def test_nobody_is_woken_for_a_digest_that_no_change_explains() -> None:
    kept = {"chat": NotedDigest(OLD), "code": NotedDigest(OTHER)}
    digests = ModelDigests(list(POOLS.values()))
    digests.learn(fleet(NEW), (), kept)
    assert (digest_of(digests, "chat"), digest_of(digests, "code")) == (OLD, OTHER)


def test_of_two_that_changed_the_second_is_tried_once_the_first_has_shown_itself() -> None:
    kept = {"chat": NotedDigest(OLD, is_doubted=True), "code": NotedDigest(OTHER, is_doubted=True)}
    digests = ModelDigests(list(POOLS.values()))
    digests.learn(fleet(NEW), (), kept)
    assert digest_of(digests, "chat") == NEW
    shown = (BackendWorker(worker_id="chat-0", role=WorkerRole.DECODE, model_name="chat"),)
    assert digests.learn(fleet(NEW, live="chat-0"), shown, kept) == {"chat": MODEL}
    kept["chat"] = NotedDigest(MODEL)
    digests.learn(fleet(NEW, live="chat-0"), shown, kept)
    assert (digest_of(digests, "chat"), digest_of(digests, "code")) == (MODEL, NEW)
