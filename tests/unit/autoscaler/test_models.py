"""Digests of models by name: learned from workers, kept for zero, doubted once a sleeping model was changed."""

from __future__ import annotations

from dataclasses import replace

from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.core.placement import WorkerRole
from stratos.planning.external_metrics import QUEUE_DEPTH, RUNNING_SEQUENCES, load_metrics
from stratos.planning.observation import observe
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


def rolling(*shown: str) -> tuple[Fleet, tuple[BackendWorker, ...]]:
    """Live workers of the model chat, each with its digest, and a request for each of these."""
    workers = []
    for number, digest in enumerate(shown):
        status = make_status(f"chat-{number}", WorkerRole.DECODE)
        status = replace(status, identity=replace(status.identity, model_digest=digest))
        workers.append(FleetWorker(ref=status.ref, status=status, is_live=True))
    owned = (BackendWorker(worker_id=f"chat-{n}", role=WorkerRole.DECODE, model_name="chat") for n in range(len(shown)))
    return replace(fleet(*shown), workers=tuple(workers)), tuple(owned)


def test_while_one_revision_replaces_another_both_are_the_pools() -> None:
    digests = ModelDigests(list(POOLS.values()))
    kept = {"chat": NotedDigest(OLD, is_doubted=True), "code": NotedDigest(OTHER)}
    both, owned = rolling(OLD, NEW)
    assert digests.learn(both, owned, kept) == {"chat": NEW}
    kept["chat"] = NotedDigest(NEW)
    assert digests.learn(both, owned, kept) == {}, "it is not written again and again"
    key = digests.key(POOLS["chat"])
    assert key is not None
    seen = observe(both, key)
    assert (len(seen.workers), seen.queue_depth) == (2, 2), "no worker is missed, and no request"
    assert not key.holds_model(OTHER)
    digests.learn(*rolling(NEW, NEW), kept)
    key = digests.key(POOLS["chat"])
    assert key is not None
    assert not key.holds_model(OLD), "once its last worker has gone"


def beside_a_guest(*shown: str) -> tuple[Fleet, tuple[BackendWorker, ...]]:
    """As ``rolling``, and a model that was added by hand, with a worker and a request of its own."""
    seen, owned = rolling(*shown)
    status = make_status("guest-0", WorkerRole.DECODE)
    status = replace(status, identity=replace(status.identity, model_digest=OTHER))
    guest = FleetWorker(ref=status.ref, status=status, is_live=True)
    return replace(seen, workers=(*seen.workers, guest), queues=(*seen.queues, *fleet(OTHER).queues)), owned


def depth_and_load(seen: Fleet, digests: ModelDigests) -> tuple[float, float | None]:
    """The numbers that the HPA of the model chat gets."""
    key = digests.key(POOLS["chat"])
    assert key is not None
    found = {metric.name: metric.value for metric in load_metrics(seen, [key])}
    return found[QUEUE_DEPTH], found.get(RUNNING_SEQUENCES)


def test_a_model_that_was_added_by_hand_is_no_load_of_a_releases_only_one() -> None:
    digests = ModelDigests([POOLS["chat"]])
    alone, owned = rolling(NEW)
    digests.learn(alone, owned, {})
    wanted = depth_and_load(alone, digests)
    assert wanted[0] == 1
    seen, owned = beside_a_guest(NEW)
    digests.learn(seen, owned, {"chat": NotedDigest(NEW)})
    assert depth_and_load(seen, digests) == wanted


def test_a_releases_only_model_that_sleeps_is_woken_for_what_nothing_else_serves() -> None:
    for is_doubted in (True, False):
        kept = {"chat": NotedDigest(OLD, is_doubted=is_doubted)}
        digests = ModelDigests([POOLS["chat"]])
        seen, _ = beside_a_guest()
        digests.learn(seen, (), kept)
        assert depth_and_load(seen, digests) == (0, 0), "the other model's"
        seen = replace(seen, queues=(*seen.queues, *fleet(NEW).queues))
        digests.learn(seen, (), kept)
        assert depth_and_load(seen, digests)[0] == 1


def test_all_is_a_releases_only_model_before_any_worker_of_it_lived() -> None:
    digests = ModelDigests([POOLS["chat"]])
    digests.learn(fleet(NEW), (), {})
    assert depth_and_load(fleet(NEW), digests)[0] == 1
