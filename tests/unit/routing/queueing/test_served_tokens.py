"""Fairness by served tokens, prompts and outputs together, in a simulation of the real queue."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from stratos.core.requests.terms import Share
from tests.support.worlds.queue_world import QueueWorld

MAX_PROMPT, MAX_OUTPUT, OUTPUT_COST = 400, 200, 2
LARGEST = MAX_PROMPT + OUTPUT_COST * MAX_OUTPUT
"""Most that one request can be charged."""


@dataclass
class Simulation:
    """One server; what tenants were served is counted as the queue charges it."""

    weights: dict[str, int]
    seed: int = 1
    served: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.world = QueueWorld(ttl_s=1e6, max_requests=100_000)
        self.random = random.Random(self.seed)

    def push(self, tenant: str, number: int = 1) -> None:
        for _ in range(number):
            share, num_tokens = Share(weight=self.weights[tenant]), self.random.randint(1, MAX_PROMPT)
            self.world.push(tenant=tenant, priority_class=2, num_prompt_tokens=num_tokens, share=share)

    def serve(self) -> str:
        """One request, prompt and output."""
        ticket = self.world.serve()
        assert ticket is not None
        request, num_output = ticket.request, self.random.randint(1, MAX_OUTPUT)
        tenant = request.terms.tenant
        self.world.queue.charge_output(request.model_digest, {tenant: num_output})
        self.served[tenant] += request.num_prompt_tokens + OUTPUT_COST * num_output
        return tenant

    def levels(self, since: Counter[str]) -> dict[str, float]:
        """Service per weight since a count."""
        return {tenant: (self.served[tenant] - since[tenant]) / weight for tenant, weight in self.weights.items()}


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def run_backlogged(simulation: Simulation, number: int) -> dict[str, float]:
    """Serve while every tenant has requests waiting; the gap never passes the bound. Returns the levels."""
    since, bound = Counter(simulation.served), {t: LARGEST / w for t, w in simulation.weights.items()}
    for _ in range(number):
        simulation.push(simulation.serve())
        levels = simulation.levels(since)
        most, least = max(levels, key=levels.__getitem__), min(levels, key=levels.__getitem__)
        # A tenant may be a charge ahead when the others arrive, and one more may be under way.
        assert levels[most] - levels[least] <= 2 * (bound[most] + bound[least])
    return simulation.levels(since)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 1, "b": 4}, {"a": 3, "b": 1, "c": 2}])
def test_the_gap_of_backlogged_tenants_is_bounded_and_their_service_fair(weights: dict[str, int]) -> None:
    simulation = Simulation(weights)
    for tenant in weights:
        simulation.push(tenant, 3)
    assert jain(list(run_backlogged(simulation, 400).values())) >= 0.95


def test_a_tenant_that_was_idle_comes_back_to_its_share_and_to_no_more() -> None:
    simulation = Simulation({"busy": 1, "back": 3})
    simulation.push("busy", 3)
    for _ in range(200):
        simulation.push(simulation.serve())
    simulation.push("back", 3)
    assert jain(list(run_backlogged(simulation, 300).values())) >= 0.95


def test_a_flood_delays_its_neighbour_by_no_more_than_its_own_share() -> None:
    simulation = Simulation({"flood": 1, "neighbour": 1})
    simulation.push("flood", 2000)
    for _ in range(20):
        simulation.serve()
    simulation.push("neighbour", 3)
    assert jain(list(run_backlogged(simulation, 300).values())) >= 0.95
