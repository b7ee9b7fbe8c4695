"""Several routers as one: who is asked, what happens when one goes, and that reports reach the one that booked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from stratos.common.errors import Draining, Overloaded, PromptRefused, QueueTimeout
from stratos.core.fleet import HELD, RESTING, FleetWorker, SleepState
from stratos.core.placement import Outcome
from stratos.core.requests.convictions import Conviction
from stratos_gateway.routers import link, outbox
from stratos_gateway.routers.router_set import preferred
from tests.support.fakes.router_peers import CONFIG, MODEL_NAME, FakePeer, RouterWorld, router_set
from tests.support.waiting import eventually
from tests.support.worlds.fleet_samples import make_request, make_status

A, B = "10.0.0.1", "10.0.0.2"


def first_choice(world: RouterWorld) -> tuple[FakePeer, FakePeer]:
    """The model's router and the other one."""
    first, second = preferred(MODEL_NAME, [f"{A}:1", f"{B}:1"])
    return world.peers[first], world.peers[second]


async def both_up(world: RouterWorld) -> None:
    await eventually(lambda: world.metric("stratos_routers", state="up") == 2, "both routers are up")


async def test_all_requests_for_a_model_go_to_its_active_router() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        for number in range(20):
            request = make_request(
                tenant=f"t{number}", model_digest=f"revision-{number % 2}", is_suspect=number % 3 == 0
            )
            assert (await world.routers.schedule(request)).router_address == first.address
        assert not second.requests


async def test_calls_that_wait_at_the_standby_return_with_the_first_choice_so_that_one_queue_has_them_all() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.state = "killed"
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        second.holds = True
        waiting = asyncio.create_task(world.routers.schedule(make_request()))
        await eventually(lambda: second.num_waiting)
        world.clock.advance(1.0)
        first.state = "up"
        assert (await waiting).router_address == first.address
        assert first.requests[-1].waited_ms == 1000
        await eventually(lambda: not second.num_waiting)


async def test_a_router_that_answers_late_stays() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.holds, first.delay_s = True, 0.6 * CONFIG.silence_timeout_s
        waiting = asyncio.create_task(world.routers.schedule(make_request()))
        num_checks = first.num_checks
        await eventually(lambda: first.num_checks >= num_checks + 5, "five late answers")
        first.holds = False
        assert (await waiting).router_address == first.address
        assert not second.requests


async def test_a_router_that_was_idle_is_asked_as_soon_as_a_call_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "IDLE_CHECK_S", 1e6)
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1, "it is up")
        (peer,) = world.peers.values()
        for number in range(3):
            num_checks = peer.num_checks
            await world.routers.schedule(make_request(tenant=f"t{number}"))
            await eventually(lambda before=num_checks: peer.num_checks > before, "it is asked")


async def test_a_gateway_that_is_held_up_blames_no_router() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.holds, first.delay_s = True, 0.2 * CONFIG.silence_timeout_s
        waiting = asyncio.create_task(world.routers.schedule(make_request()))
        await eventually(lambda: first.num_waiting)
        num_checks = first.num_checks
        while first.num_checks < num_checks + 3:
            time.sleep(3 * CONFIG.silence_timeout_s)  # noqa: ASYNC251 - the event loop is what is held up
            await asyncio.sleep(0)
        first.holds = False
        assert (await waiting).router_address == first.address
        assert not second.requests


async def test_a_killed_router_is_gone_around_and_its_model_returns() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.state = "killed"
        assert (await world.routers.schedule(make_request())).router_address == second.address
        first.state = "up"
        await both_up(world)
        assert (await world.routers.schedule(make_request())).router_address == first.address


async def test_calls_that_wait_at_a_stopped_router_wait_elsewhere_with_their_age() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.holds = True
        waiting = asyncio.create_task(world.routers.schedule(make_request(waited_ms=100)))
        await eventually(lambda: first.num_waiting)
        world.clock.advance(2.0)
        first.state = "stopped"
        assert (await waiting).router_address == second.address
        assert second.requests[0].waited_ms == 2100
        await eventually(lambda: not first.num_waiting, "the stopped router's call is cancelled")


async def test_a_draining_router_sends_its_calls_to_the_other() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.error = Draining("leaving")
        assert (await world.routers.schedule(make_request())).router_address == second.address


async def test_the_only_router_is_waited_for_even_while_it_stands_still() -> None:
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)
        (peer,) = world.peers.values()
        peer.holds = True
        waiting = asyncio.create_task(world.routers.schedule(make_request()))
        await eventually(lambda: peer.num_waiting)
        peer.state = "stopped"
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        peer.state, peer.holds = "up", False
        await waiting
        assert len(peer.requests) == 1, "its place in the queue was kept"


async def test_waiting_requests_do_not_dial_an_absent_router() -> None:
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)  # before that it is away, too
        (peer,) = world.peers.values()
        peer.state = "killed"
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        waiting = [asyncio.create_task(world.routers.schedule(make_request(f"req-{n}"))) for n in range(200)]
        num_checks = peer.num_checks
        await eventually(lambda: peer.num_checks >= num_checks + 5, "five more tries")
        assert not peer.requests, "the link's one task dials, none of the requests"
        peer.state = "up"
        await asyncio.gather(*waiting)
        assert len(peer.requests) == 200


async def test_no_router_in_time_is_a_queue_timeout() -> None:
    async with router_set() as world:
        with pytest.raises(QueueTimeout):
            await world.routers.schedule(make_request(), timeout_s=0.01)


async def test_a_refusal_is_the_answer() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.error = Overloaded("full")
        with pytest.raises(Overloaded):
            await world.routers.schedule(make_request())
        assert not second.requests


async def test_a_caller_that_leaves_cancels_its_call() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        first.holds = True
        leaving = asyncio.create_task(world.routers.schedule(make_request()))
        await eventually(lambda: first.num_waiting)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await eventually(lambda: not first.num_waiting)
        assert not second.requests


async def test_reports_go_to_the_router_that_booked_and_wait_until_it_is_back() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        first, second = first_choice(world)
        placements = [await world.routers.schedule(make_request(f"req-{number}")) for number in range(3000)]
        first.state = "killed"
        for placement in placements:
            world.routers.report(placement, Outcome.CANCELLED, 7)
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        first.state = "up"
        await eventually(lambda: sum(map(len, first.reports)) == 3000, "all reports arrived")
        assert [report.handoff_id for call in first.reports for report in call] == [p.handoff_id for p in placements]
        assert len(first.reports) <= 4, "many in one call"
        assert not second.reports
        assert world.metric("stratos_router_reports_dropped_total") == 0


async def test_reports_that_cannot_be_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_REPORTS", 10)
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)
        placement = await world.routers.schedule(make_request())
        (peer,) = world.peers.values()
        peer.state = "killed"
        for _ in range(15):
            world.routers.report(placement, Outcome.FINISHED, 7)
        assert world.metric("stratos_router_reports_dropped_total") == 5


async def test_a_router_that_leaves_the_name_gets_its_last_reports_and_a_new_one_is_used() -> None:
    async with router_set(A) as world:
        placement = await world.routers.schedule(make_request())
        old = world.peers[f"{A}:1"]
        world.routers.report(placement, Outcome.FINISHED, 7)
        world.addresses[:] = [B]
        await eventually(lambda: world.metric("stratos_routers", state="up") == 2)
        assert not old.is_closed, "it answers, although it is no longer named"
        old.state = "leaving"
        await eventually(lambda: old.is_closed)
        assert len(old.reports) == 1
        assert (await world.routers.schedule(make_request())).router_address == f"{B}:1"


POISON = make_request(tenant="a", prompt_digest=b"poison")


async def test_a_convicted_prompt_is_refused_before_a_router_is_asked() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        await world.routers.convict(POISON)
        with pytest.raises(PromptRefused):
            await world.routers.schedule(POISON)
        assert not any(peer.requests for peer in world.peers.values())
        assert all(peer.table.holds("a", b"poison", world.clock.now()) for peer in world.peers.values())
        for other in (make_request(tenant="b", prompt_digest=b"poison"), make_request(tenant="a", prompt_digest=b"q")):
            await world.routers.schedule(other)
        world.clock.advance(600.0)
        await world.routers.schedule(POISON)
        assert world.metric("stratos_convictions_total") == 1
        assert world.metric("stratos_convicted_refusals_total") == 1


async def test_convictions_of_other_gateways_come_through_the_routers() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        peer = world.peers[f"{B}:1"]
        peer.table.add_all([Conviction(tenant="a", prompt_digest=b"poison", left_s=60.0)], world.clock.now())
        other = world.peers[f"{A}:1"]
        await eventually(lambda: other.table.holds("a", b"poison", world.clock.now()), "it is handed on")
        with pytest.raises(PromptRefused):
            await world.routers.schedule(POISON)


async def test_a_router_that_comes_back_empty_is_told_before_it_is_used() -> None:
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)
        await world.routers.convict(POISON)
        (peer,) = world.peers.values()
        peer.state = "killed"
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        peer.restart()
        assert not len(peer.table)
        peer.state = "up"
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)
        assert peer.table.holds("a", b"poison", world.clock.now())


async def test_a_prompt_without_a_digest_is_never_convicted() -> None:
    async with router_set(A) as world:
        probe = make_request()
        await world.routers.convict(probe)
        await world.routers.schedule(probe)


async def test_a_stopped_router_does_not_hold_up_a_conviction() -> None:
    async with router_set(A, B) as world:
        await both_up(world)
        stopped, other = world.peers.values()
        stopped.state = "stopped"
        await world.routers.convict(POISON)
        assert other.table.holds("a", b"poison", world.clock.now())


async def test_a_router_that_answers_for_a_moment_alone_leaves_calls_waiting() -> None:
    """The reports that wait for it fail as soon as it is back, before the calls that wait have had their turn."""
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)
        [peer] = world.peers.values()
        placement = await world.routers.schedule(make_request())
        peer.state = "killed"
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        world.routers.report(placement, Outcome.FINISHED, 1)
        waiting = asyncio.create_task(world.routers.schedule(make_request()))
        num_refused = peer.num_refused
        peer.refuses_reports, peer.state = True, "up"
        await eventually(lambda: peer.num_refused > num_refused, "it was up, and refused the reports")
        peer.refuses_reports = False
        assert (await waiting).router_address == peer.address


async def test_a_router_that_is_back_takes_the_calls_of_its_own_models_and_leaves_the_others() -> None:
    names = {f"digest-{number}": f"model-{number}" for number in range(32)}
    async with router_set(A, B, name_of=names.__getitem__) as world:
        await both_up(world)
        digests = {preferred(name, [f"{A}:1", f"{B}:1"])[0]: digest for digest, name in names.items()}
        assert len(digests) == 2, "both routers are the first choice of some model"
        returning, standing = world.peers[f"{A}:1"], world.peers[f"{B}:1"]
        returning.state = "killed"
        await eventually(lambda: world.metric("stratos_routers", state="away") == 1)
        standing.holds = True
        waiting, stays = [
            asyncio.create_task(world.routers.schedule(make_request(model_digest=digests[peer.address])))
            for peer in (returning, standing)
        ]
        await eventually(lambda: standing.num_waiting == 2)
        returning.state = "up"
        assert (await waiting).router_address == returning.address
        await eventually(lambda: standing.num_waiting == 1)
        assert len(standing.requests) == 2, "the other call was not sent again"
        standing.holds = False
        assert (await stays).router_address == standing.address


def worker(name: str, **changes: object) -> FleetWorker:
    of_worker = {key: changes.pop(key) for key in ("is_live", "out_reason") if key in changes}
    status = make_status(name, **changes)
    return FleetWorker(ref=status.ref, status=status, **{"is_live": True, **of_worker})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        (worker("live"), (2, 2)),
        (worker("asleep", is_live=False, out_reason=RESTING, sleep_state=SleepState.ASLEEP), (2, 2)),
        (worker("away", is_live=False, out_reason="it does not answer"), (1, 2)),
        (worker("spare", is_live=False, out_reason=HELD, sleep_state=SleepState.STANDBY), (1, 1)),
        (worker("spot", is_spot=True), (1, 1)),
        (worker("silent", is_live=False, out_reason="it does not answer", is_spot=True), (1, 1)),
        (replace(worker("new"), status=None), (1, 1)),
    ],
    ids=lambda value: value.ref.worker_id if isinstance(value, FleetWorker) else "",
)
async def test_a_model_lives_by_workers_that_any_request_may_have(more: FleetWorker, counts: tuple[int, int]) -> None:
    async with router_set(A) as world:
        await eventually(lambda: world.metric("stratos_routers", state="up") == 1)
        first = worker("first")
        assert first.status is not None
        world.peers[f"{A}:1"].workers = (first, more)
        found = await world.routers.known_workers()
        digest, role = first.status.identity.model_digest, first.ref.role
        assert tuple(of[digest][role] for of in found) == counts
        assert await world.routers.live_workers() == found[0]
