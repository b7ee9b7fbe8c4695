"""Workers that are kept clear of the lowest class while others come: which, how many, and for how long."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from stratos.common.errors import StratosError
from stratos.core.features import Feature
from stratos.core.placement import Outcome, Placement, Work, WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.core.requests.terms import Share
from stratos.core.tenant import PLATFORM_TENANT
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.policy.settings import NAMED, RoutingPoliciesConfig
from stratos.routing.queueing.ticket import Ticket
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig
from tests.support.worlds.fleet_samples import ledger, make_request, make_status

PREMIUM = 1
FOR_S = 10.0
SLOTS = 4


class World:
    """Decode workers d0, d1, ... with four batch slots, or those that are described."""

    def __init__(self, num_workers: int = 2, *, policy: str = "prefix", **admission: Any) -> None:
        self.fleet = FleetState(LivenessConfig(silent_after_s=1e9), BookingLedger(BookingConfig(confirm_s=1e9)))
        self.statuses: dict[str, dict[str, Any]] = {f"d{number}": {} for number in range(num_workers)}
        config = DispatchConfig(
            queue=QueueConfig(max_requests=100_000),
            admission=AdmissionConfig(max_waiting_per_worker=0, clear_for_s=FOR_S, **admission),
            policies=RoutingPoliciesConfig(default=policy),
        )
        self.dispatcher = Dispatcher(self.fleet, config, Random(1))
        self.running: dict[str, tuple[str, Placement]] = {}
        """Worker and placement of each request that was placed and has not ended."""
        self.errors: dict[str, StratosError] = {}
        self.now, self._number = 1.0, 0
        self.know()

    def know(self, **changes: dict[str, Any]) -> None:
        """Workers with these names are, or are now, so."""
        for name, more in changes.items():
            self.statuses.setdefault(name, {}).update(more)
        roles = {name: more.get("role", WorkerRole.DECODE) for name, more in self.statuses.items()}
        self.fleet.set_members([Member(name, f"{name}:1", role) for name, role in roles.items()])
        self.report()

    def report(self) -> None:
        """Statuses of all workers."""
        rows = Counter(worker for worker, _ in self.running.values())
        for name, more in self.statuses.items():
            more = {"max_num_seqs": SLOTS, "num_running": rows[name], **more}
            role = more.pop("role", WorkerRole.DECODE)
            self.dispatcher.on_status(name, make_status(name, role, **more), self.now)

    def push(self, priority_class: int = BATCH_CLASS, **changes: Any) -> Ticket:
        self._number += 1
        name = changes.pop("name", f"{'line' if priority_class == BATCH_CLASS else 'top'}{self._number}")
        return self.dispatcher.push(make_request(name, priority_class=priority_class, **changes), self.now)[0]

    def turn(self, seconds: float = 0.1) -> dict[str, str]:
        """Place what can be placed; where each was, by its name."""
        self.now += seconds
        self.report()
        placed = {}
        for ticket, answer in self.dispatcher.turn(self.now):
            name = ticket.request.request_id
            if isinstance(answer, Placement):
                self.running[name] = placed[name] = answer.worker.worker_id, answer
            else:
                self.errors[name] = answer
        return {name: worker for name, (worker, _) in placed.items()}

    def end(self, name: str) -> None:
        _, placement = self.running.pop(name)
        self.dispatcher.complete(placement.handoff_id, Outcome.FINISHED, 1, self.now)

    def clear(self) -> set[str]:
        return {worker.ref.worker_id for worker in self.dispatcher.workers(self.now) if worker.is_clear}

    def rows_at(self, worker: str) -> int:
        return sum(one == worker for one, _ in self.running.values())

    def lines_at(self) -> Counter[str]:
        return Counter(worker for name, (worker, _) in self.running.items() if name.startswith("line"))

    def fill(self, num_lines: int = 100) -> Counter[str]:
        """As many lines as find a place; where they run."""
        for _ in range(num_lines):
            self.push()
        self.turn()
        return self.lines_at()


def ask(world: World, **changes: Any) -> str:
    """A premium request; where it was placed."""
    ticket = world.push(PREMIUM, **changes)
    return world.turn()[ticket.request.request_id]


def cleared(world: World) -> tuple[str, ...]:
    """A premium request came and ended: the worker that is clear since then, and the others."""
    ask(world)
    world.end(next(iter(world.running)))
    world.report()
    [clear] = world.clear()
    return clear, *(name for name in world.statuses if name != clear)


def test_lines_leave_a_worker_to_others_and_take_it_again_once_none_come() -> None:
    world = World()
    clear, other = cleared(world)
    assert world.fill() == {other: SLOTS}
    world.turn(FOR_S - 1.0)
    assert world.lines_at() == {other: SLOTS}
    assert ask(world) == clear
    world.turn(FOR_S - 1.0)
    assert world.lines_at() == {other: SLOTS}, "the time begins with the last request"
    world.turn(1.2)
    assert world.clear() == set()
    assert world.lines_at() == {other: SLOTS, clear: SLOTS - 1}, "no status, and no arrival, is waited for"


@pytest.mark.parametrize("admission", [{}, {"clear_ratio": 1.0}])
def test_a_single_worker_takes_all(admission: dict[str, Any]) -> None:
    world = World(1, **admission)
    ask(world)
    assert world.clear() == set()
    assert world.fill() == {"d0": SLOTS - 1}


def test_it_can_be_switched_off() -> None:
    world = World(clear_ratio=0.0)
    ask(world)
    assert world.clear() == set()
    assert sum(world.fill().values()) == 2 * SLOTS - 1


@pytest.mark.parametrize(
    ("num_workers", "ratio", "num_clear"),
    [(2, 0.25, 1), (3, 0.25, 1), (8, 0.25, 2), (9, 0.25, 2), (4, 1.0, 3), (2, 1, 1)],
)
def test_so_many_are_clear(num_workers: int, ratio: float, num_clear: int) -> None:
    world = World(num_workers, clear_ratio=ratio)
    ask(world)
    assert len(world.clear()) == num_clear
    assert not world.fill().keys() & world.clear()
    assert len(world.lines_at()) == num_workers - num_clear


def test_the_emptiest_is_chosen_and_stays_so_while_it_lives() -> None:
    world = World(4)
    world.know(d0={"num_running": 3}, d1={"num_running": 3}, d2={"num_running": 1}, d3={"num_running": 4})
    ask(world)
    assert world.clear() == {"d2"}
    world.know(d0={"num_running": 0}, d1={"num_running": 0}, d2={"num_running": 4})
    world.turn(1.0)
    assert world.clear() == {"d2"}
    world.know(d2={"is_draining": True}, d0={"num_running": 1})
    assert world.clear() == {"d1"}, "at once"
    world.know(d2={"is_draining": False, "num_running": 0}, d1={"not_ready_reason": "asleep"})
    assert world.clear() == {"d2"}


def test_workers_that_are_out_are_not_counted() -> None:
    world = World(3)
    world.know(d1={"not_ready_reason": "asleep"}, d2={"is_draining": True})
    ask(world)
    assert world.clear() == set()
    assert world.fill() == {"d0": SLOTS - 1}


def test_the_last_other_one_leaves_and_lines_run_on() -> None:
    world = World()
    clear, other = cleared(world)
    assert world.fill() == {other: SLOTS}
    world.know(**{other: {"is_draining": True}})
    world.turn(0.0)
    assert world.lines_at()[clear] == SLOTS


def test_the_worker_of_the_plans_pool_is_chosen() -> None:
    world = World(4)
    world.know(d3={"pool": "fast"}, d2={"pool": "slow"})
    assert ask(world, share=Share(pools=frozenset({"fast"}))) == "d3"
    assert world.clear() == {"d3"}
    world.turn(FOR_S - 1.0)
    ask(world)
    assert world.clear() == {"d3"}, "plans without a pool are served anywhere"


def test_spot_workers_take_lines_first_and_none_of_them_is_chosen() -> None:
    world = World(1)
    world.know(spot={"is_spot": True})
    assert ask(world) == "d0"
    assert world.clear() == {"d0"}
    assert world.fill() == {"spot": SLOTS}
    world.know(spot={"is_draining": True})
    world.turn(0.0)
    assert world.lines_at()["d0"] == SLOTS - 1, "it is the only one"


def test_what_could_run_nowhere_else_runs_there() -> None:
    world = World()
    world.know(d0={"features": frozenset(Feature)}, d1={"features": frozenset(), "num_running": 1})
    assert ask(world) == "d0"
    feature = next(iter(Feature))
    world.push(name="line-x", required_features=frozenset({feature}))
    world.push(name="line-y", excluded_incarnations=frozenset({"inc-d1"}))
    world.push(name="line-z", num_prompt_tokens=64)
    assert world.turn() == {"line-x": "d0", "line-y": "d0", "line-z": "d1"}


def test_a_line_that_fits_no_other_pool_runs_there() -> None:
    world = World()
    world.know(d0={"blocks": ledger(1000)}, d1={"blocks": ledger(50), "num_running": 1})
    assert ask(world) == "d0"
    world.push(name="line-large", num_prompt_tokens=1600)
    assert world.turn() == {"line-large": "d0"}


def test_a_line_that_has_begun_goes_on_there() -> None:
    """Its KV is moved with it, and is lost where it waits."""
    world = World()
    clear, other = cleared(world)
    assert world.fill() == {other: SLOTS}
    world.push(name="line-moved", is_move=True, num_emitted_tokens=3)
    assert world.turn() == {"line-moved": clear}


@pytest.mark.parametrize("policy", sorted(NAMED.keys() - {"round_robin", "session_affinity"}))
def test_others_go_there(policy: str) -> None:
    world = World(4, policy=policy)
    ask(world)
    [clear] = world.clear()
    world.fill(6)
    for name in [name for name in world.running if name.startswith("top")]:
        world.end(name)
    for _ in range(10):
        name = world.push(PREMIUM).request.request_id
        assert world.turn()[name] == clear
        world.end(name)


@pytest.mark.parametrize("policy", ["prefix", "balanced"])
def test_others_go_there_also_where_lines_are_few(policy: str) -> None:
    """A single line has a step under way at any time, as twenty have."""
    world = World(2, policy=policy)
    clear, other = cleared(world)
    world.push()
    world.turn()
    assert world.rows_at(other) == 1
    assert {ask(world) for _ in range(2)} == {clear}
    assert ask(world, num_choices=SLOTS - 1) == other, "there is room for it"


def test_what_a_line_was_kept_from_is_named() -> None:
    world = World()
    clear, other = cleared(world)
    world.push(name="line")
    assert world.turn() == {"line": other}
    _, placement = world.running["line"]
    assert placement.rejections == {clear: "clear"}
    world.fill()
    assert world.dispatcher.take_rejections()["clear"]


def test_the_text_of_a_timeout_says_so() -> None:
    world = World()
    ask(world)
    world.fill(SLOTS)
    waiting = world.push(name="line-late")
    for _ in range(4):
        name = world.push(PREMIUM).request.request_id
        world.turn(8.0)
        world.end(name)
    assert not waiting.is_waiting
    assert "left to higher classes: 1" in str(world.errors["line-late"])


def test_a_line_that_waits_reserves_no_worker_that_is_clear() -> None:
    """It could not run there, and the room that gets free elsewhere would go to others for ever."""
    world = World(3)
    clear, *others = cleared(world)
    world.fill(2 * SLOTS)
    large = world.push(name="line-large", num_choices=SLOTS)
    for number in range(16):
        world.push(name=f"line-small-{number}", tenant=f"t{number}")
        world.turn(0.5)
        world.end(next(name for name in world.running if name != "line-large"))
    assert not large.is_waiting
    assert world.running["line-large"][0] in others
    assert world.rows_at(clear) == 0


def test_prompts_of_lines_are_computed_elsewhere_too() -> None:
    world = World(2)
    world.know(p0={"role": WorkerRole.PREFILL}, p1={"role": WorkerRole.PREFILL})
    ask(world)
    [clear] = [name for name in world.clear() if name.startswith("p")]
    world.push(name="line")
    world.turn()
    _, placement = world.running["line"]
    assert [ref.worker_id for ref in placement.prefill] == [{"p0": "p1", "p1": "p0"}[clear]]


def test_inputs_to_embed_have_workers_of_their_own() -> None:
    world = World(2)
    world.know(p0={"role": WorkerRole.PREFILL}, p1={"role": WorkerRole.PREFILL})
    ask(world, work=Work.EMBEDDING, max_output_tokens_total=0)
    [clear] = world.clear()
    assert clear in ("p0", "p1"), "no decode worker was asked for"
    world.push(name="line", work=Work.EMBEDDING, max_output_tokens_total=0)
    assert world.turn() == {"line": {"p0": "p1", "p1": "p0"}[clear]}


def test_the_platforms_own_requests_and_other_models_clear_none() -> None:
    world = World()
    ask(world, tenant=PLATFORM_TENANT)
    world.push(PREMIUM, model_digest="cd" * 32)
    world.turn()
    assert world.clear() == set()


def test_many_models_are_forgotten_and_take_no_memory() -> None:
    world = World()
    for number in range(1000):
        world.push(PREMIUM, model_digest=f"{number:064x}") if number < 60 else None
    ask(world)
    assert len(world.clear()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_no_line_starves_and_none_runs_where_it_must_not(seed: int) -> None:
    """Random arrivals, ends, drains and sleeps: lines take no clear worker, and all end once no other request comes."""
    random = Random(seed)
    world = World(random.randint(1, 5), clear_ratio=random.choice([0.25, 0.5, 1.0]))
    num_lines, lines = 0, list[Ticket]()
    for _ in range(300):
        for _ in range(random.randrange(4)):
            num_lines += 1
            lines.append(world.push(name=f"line{num_lines}"))
        if random.random() < 0.3:
            world.push(PREMIUM)
        name = f"d{random.randrange(len(world.statuses))}"
        if random.random() < 0.1:
            world.know(**{name: random.choice([{"is_draining": True}, {"not_ready_reason": "asleep"}])})
        if random.random() < 0.2:
            world.know(**{name: {"is_draining": False, "not_ready_reason": ""}})
        placed = world.turn(random.choice([0.1, 0.5, 3.0]))
        clear, is_out = world.clear(), lambda one: bool(one.get("is_draining") or one.get("not_ready_reason"))
        num_live = sum(not is_out(one) for one in world.statuses.values())
        assert len(clear) < max(1, num_live)
        assert not {worker for name, worker in placed.items() if name.startswith("line")} & clear
        for name in [name for name in world.running if random.random() < 0.3]:
            world.end(name)
    world.know(**{name: {"is_draining": False, "not_ready_reason": ""} for name in world.statuses})
    world.now += FOR_S
    while any(ticket.is_waiting for ticket in lines):
        assert world.turn(0.5) or world.errors or world.running
        for name in list(world.running):
            world.end(name)
