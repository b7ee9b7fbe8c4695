"""Turns of models that share a device, on a virtual clock: no one starves, and changes do not eat the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.planning.turns import SharerSeen, TurnConfig, TurnPlanner
from tests.support.examples import examples

TICK_S = 0.2
CONFIG = TurnConfig(min_residency_s=10.0, busy_residency_s=30.0, max_change_share=0.2)


@dataclass
class Device:
    """Two models or more by turns; a request takes ``serve_s`` once its model is awake."""

    change_s: float = 2.0
    serve_s: float = 0.5
    config: TurnConfig = CONFIG
    models: tuple[str, ...] = ("a", "b")
    now: float = 0.0
    waiting: dict[str, list[float]] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=dict)
    turns: list[tuple[float, str]] = field(default_factory=list)
    changing_s: float = 0.0
    _until: float = 0.0
    _next: str = ""
    _busy_until: float = 0.0

    def __post_init__(self) -> None:
        self.planner = TurnPlanner(self.config)
        self.waiting = {model: [] for model in self.models}
        self.waits = {model: [] for model in self.models}

    def run(self, seconds: float, arrivals: Callable[[float], str]) -> None:
        """``arrivals`` names the models of which a request comes in a tick."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for model in arrivals(self.now):
                self.waiting[model].append(self.now)
            if self._next and self.now >= self._until:
                self.planner.changed(self._next, self.now, self.change_s)
                self.turns.append((self.now, self._next))
                self._next = ""
            if not self._next:
                self._serve()
                self._look()

    def _serve(self) -> None:
        own = self.waiting.get(self.planner.resident)
        if own and self.now >= self._busy_until:
            self.waits[self.planner.resident].append(self.now - own.pop(0))
            self._busy_until = self.now + self.serve_s

    def _look(self) -> None:
        is_serving = self.now < self._busy_until
        seen = [
            SharerSeen(
                model=model,
                is_awake=model == (self.planner.resident or "a"),
                num_waiting=len(queue),
                oldest_s=self.now - queue[0] if queue else 0.0,
                is_busy=bool(queue) or (is_serving and model == self.planner.resident),
            )
            for model, queue in self.waiting.items()
        ]
        model = self.planner.decide(seen, self.now)
        if model != self.planner.resident:
            self._next, self._until = model, self.now + self.change_s
            self.changing_s += self.change_s


def each(seconds: float, *models: str) -> Callable[[float], str]:
    """A request every so many seconds, of one model after the other."""

    def arrivals(now: float) -> str:
        number = round(now / TICK_S)
        every = round(seconds / TICK_S)
        return "" if number % every else models[number // every % len(models)]

    return arrivals


def test_requests_for_both_by_turns_do_not_make_the_device_thrash() -> None:
    device = Device()
    device.run(600, each(1.0, "a", "b"))
    assert device.changing_s <= 0.2 * 600
    assert 20 < len(device.turns) < 60, "without a residency it would be a change for each of 600 requests"
    gaps = [later - earlier for (earlier, _), (later, _) in zip(device.turns, device.turns[1:], strict=False)]
    assert min(gaps) >= CONFIG.min_residency_s
    assert max(device.waits["a"] + device.waits["b"]) < CONFIG.busy_residency_s + 4 * device.change_s
    assert len(device.waits["a"]) + len(device.waits["b"]) > 550


def test_without_a_residency_the_same_load_thrashes() -> None:
    eager = TurnConfig(min_residency_s=0.0, busy_residency_s=0.0, max_change_share=0.99)
    device = Device(config=eager)
    device.run(600, each(1.0, "a", "b"))
    assert device.changing_s > 0.5 * 600


def test_a_model_that_is_never_idle_gives_the_device_up_all_the_same() -> None:
    device = Device(serve_s=0.2)
    steady, rare = each(0.4, "a"), each(120.0, "b")
    device.run(1200, lambda now: steady(now) + rare(now))
    assert len(device.waits["b"]) >= 8
    assert max(device.waits["b"]) < CONFIG.busy_residency_s + 2 * device.change_s + 1
    assert max(device.waits["a"]) < CONFIG.min_residency_s + 2 * device.change_s + 10


def test_an_idle_model_stays_until_another_one_is_wanted() -> None:
    device = Device()
    device.run(3600, lambda now: "a" if abs(now - 1) < TICK_S / 2 else "")
    assert device.turns == []
    device.run(3, lambda now: "b" if device.now < 3600.3 else "")
    assert [model for _, model in device.turns] == ["b"], "it has had its time: the change begins at once"


def test_where_loading_takes_long_turns_are_longer() -> None:
    device = Device(change_s=20.0)
    device.run(3600, each(1.0, "a", "b"))
    assert device.changing_s <= 0.2 * 3600 + 20
    assert len(device.turns) > 20


def test_of_several_the_one_that_has_waited_longest_is_next() -> None:
    device = Device(models=("a", "b", "c"))
    device.run(900, each(1.0, "a", "b", "c"))
    order = [model for _, model in device.turns]
    assert set(order) == {"a", "b", "c"}
    assert all(order[i : i + 3] in (["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]) for i in range(len(order) - 3))


def test_a_planner_that_starts_finds_who_has_the_device() -> None:
    planner = TurnPlanner(CONFIG)
    assert planner.decide([SharerSeen(model="a"), SharerSeen(model="b")], 0.0) == "", (
        "all sleep, and no one is asked for"
    )
    assert planner.decide([SharerSeen(model="a"), SharerSeen(model="b", num_waiting=1)], 1.0) == "b"
    planner = TurnPlanner(CONFIG)
    both = [SharerSeen(model="a", is_awake=True), SharerSeen(model="b", is_awake=True, num_waiting=1, oldest_s=9.0)]
    assert planner.decide(both, 0.0) == "a", "the first has it; the other is to sleep"
    assert planner.decide(both, CONFIG.min_residency_s) == "b"


def test_a_planner_does_not_believe_the_first_that_is_awake_while_others_start() -> None:
    """Models of one device start by turns, and the last one keeps it."""
    planner = TurnPlanner(CONFIG)
    a, b = SharerSeen(model="a", is_there=False), SharerSeen(model="b", is_awake=True)
    assert planner.decide([a, b], 1.0) == ""
    assert planner.decide([SharerSeen(model="a", is_awake=True), SharerSeen(model="b")], 2.0) == "a"


def test_a_planner_that_starts_beside_a_lost_model_serves_the_other_one() -> None:
    planner = TurnPlanner(CONFIG)
    seen = [SharerSeen(model="a", is_there=False), SharerSeen(model="b", is_awake=True, num_waiting=1, is_busy=True)]
    assert planner.decide(seen, 1.0) == "b"


@settings(max_examples=examples(60), deadline=None)
@given(
    change_s=st.floats(0.2, 15.0),
    serve_s=st.floats(0.0, 1.0),
    load=st.lists(st.tuples(st.floats(0.0, 300.0), st.sampled_from("abc")), max_size=200),
)
def test_every_request_is_served_and_changes_stay_within_their_share(
    change_s: float, serve_s: float, load: list[tuple[float, str]]
) -> None:
    device = Device(change_s=change_s, serve_s=serve_s, models=("a", "b", "c"))
    at: dict[int, str] = {}
    for when, model in load:
        at[round(when / TICK_S)] = at.get(round(when / TICK_S), "") + model
    device.run(1500, lambda now: at.get(round(now / TICK_S), ""))
    assert not any(device.waiting.values())
    allowed = 0.2 * device.turns[-1][0] + 2 * change_s if device.turns else 0.0
    assert device.changing_s <= allowed + TICK_S * len(device.turns)


@pytest.mark.parametrize("change_s", [0.0, 1.0, 3.0])
def test_a_turn_lasts_at_least_as_the_share_of_changes_says(change_s: float) -> None:
    planner = TurnPlanner(CONFIG)
    planner.changed("a", 0.0, change_s)
    assert planner.least_s == pytest.approx(max(10.0, 4 * change_s))


def batch_turn(planner: TurnPlanner, *, client_age_s: float, until_s: float, lines: Callable[[float], int]) -> float:
    """Seconds at which lines of batches for b get a turn while a is awake; infinity where they get none."""
    for tick in range(round(until_s / TICK_S)):
        now = tick * TICK_S
        own = SharerSeen(
            model="a", is_awake=True, is_busy=client_age_s < CONFIG.min_residency_s, client_age_s=client_age_s
        )
        if planner.decide([own, SharerSeen(model="b", num_batch_waiting=lines(now))], now) == "b":
            return now
    return float("inf")


def test_batches_wait_while_clients_of_the_awake_model_come_and_not_for_ever() -> None:
    config = replace(CONFIG, batch_patience_s=100.0)
    assert batch_turn(TurnPlanner(config), client_age_s=1.0, until_s=300, lines=lambda now: 4) == pytest.approx(100.0)
    eager = replace(CONFIG, batch_patience_s=0.0)
    assert batch_turn(TurnPlanner(eager), client_age_s=1.0, until_s=300, lines=lambda now: 4) == pytest.approx(30.0)


def test_batches_get_a_turn_in_a_pause_of_the_clients() -> None:
    config = replace(CONFIG, batch_patience_s=100.0)
    found = batch_turn(TurnPlanner(config), client_age_s=20.0, until_s=300, lines=lambda now: 4)
    assert found == pytest.approx(CONFIG.min_residency_s)
    assert batch_turn(TurnPlanner(config), client_age_s=20.0, until_s=300, lines=lambda now: 0) == float("inf")


def test_lines_that_come_again_have_waited_since_the_first_of_them() -> None:
    config = replace(CONFIG, batch_patience_s=100.0)
    found = batch_turn(TurnPlanner(config), client_age_s=0.0, until_s=300, lines=lambda now: int(now % 60 < 50))
    assert found == pytest.approx(100.0), "their time does not begin again with each try"


@pytest.mark.parametrize("client_age_s", [0.0, 60.0])
def test_clients_that_wait_go_before_batches_that_have_waited_longer(client_age_s: float) -> None:
    planner = TurnPlanner(replace(CONFIG, batch_patience_s=100.0))
    seen = [
        SharerSeen(model="a", is_awake=True, is_busy=True, client_age_s=client_age_s),
        SharerSeen(model="b", num_batch_waiting=9),
        SharerSeen(model="c", num_waiting=1, oldest_s=1.0),
    ]
    assert planner.decide(seen, 0.0) == "a"
    assert planner.decide(seen, CONFIG.busy_residency_s) == "c"
