"""Failures that published designs promise to survive, each with the test that makes it happen here.

The table names tests and claims no figure of its own; `pytest` with a name behind it runs that test.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.reproduce.record.answer import FigureKind
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenFailure:
    """Failure, outcome, and the test of both."""

    claim: str
    failure: str
    outcome: str
    test: str
    """File and function below ``tests``."""


FAILURES = (
    ProvenFailure(
        claim="0.11", failure="the KV pool reaches its mark of 90 %", outcome="new requests wait, running ones go on",
        test="unit/engine/kv_cache/test_admission.py::test_a_request_runs_up_to_the_mark_and_waits_above_it",
    ),
    ProvenFailure(
        claim="0.11", failure="a request alone is above the mark", outcome="refused at once",
        test="unit/engine/kv_cache/test_admission.py::test_alone_above_the_mark_is_refused_at_once",
    ),
    ProvenFailure(
        claim="0.11", failure="the pool is full in the middle of an output", outcome="preemption costs time alone",
        test="unit/engine/test_engine_core.py::test_preemption_changes_nothing_but_time",
    ),
    ProvenFailure(
        claim="0.11", failure="an adapter's file is damaged", outcome="its digest shows it, it is fetched again",
        test="unit/worker/test_adapter_cache.py::test_folder_damaged_on_disk_is_fetched_again",
    ),
    ProvenFailure(
        claim="0.11", failure="a decode worker is killed", outcome="every stream goes on, no token differs",
        test="integration/platform/test_fake.py::test_a_killed_decode_worker_loses_no_token",
    ),
    ProvenFailure(
        claim="0.11", failure="one of two workers dies under 32 streams", outcome="the other takes them over",
        test="integration/gateway/test_recovery.py::test_thirty_two_streams_survive_the_death_of_one_of_two_workers",
    ),
    ProvenFailure(
        claim="0.11", failure="a prompt is longer than the context", outcome="refused by name",
        test="unit/gateway/preparation/test_generation.py::test_a_prompt_that_is_too_long_is_a_context_length_error",
    ),
    ProvenFailure(
        claim="0.11", failure="requests of a low class wait for 2 s", outcome="they age into one of ten dispatches",
        test="unit/routing/queueing/test_queue.py::"
        "test_aged_requests_get_a_tenth_of_the_dispatches_oldest_first_while_a_higher_class_is_backlogged",
    ),
    ProvenFailure(
        claim="3.14", failure="the queue is full", outcome="refused at once",
        test="integration/router/test_placement.py::"
        "test_full_queue_and_impossible_and_malformed_requests_are_refused_at_once",
    ),
    ProvenFailure(
        claim="3.14", failure="80 % of the KV of all workers is taken",
        outcome="a part of the lowest class that rises to all is refused; there is no mark of 95 % for others",
        test="unit/routing/dispatch/test_memory_pressure.py::test_the_part_that_is_refused_rises_evenly",
    ),
    ProvenFailure(
        claim="0.11", failure="a worker is killed that has a spare",
        outcome="the spare takes its place without a start; N+2 and 30 s are no promise here",
        test="integration/platform/test_spares.py::"
        "test_a_spare_takes_the_place_of_a_killed_worker_and_the_pool_gets_a_new_spare",
    ),
    ProvenFailure(
        claim="0.11", failure="a source of KV is lost during a hand-off", outcome="the prompt is computed elsewhere",
        test="integration/worker/test_processes.py::test_source_is_lost_in_the_middle",
    ),
    ProvenFailure(
        claim="0.11", failure="frames of KV are damaged on their way", outcome="sent again, or computed",
        test="integration/worker/handoff/test_handoff_failures.py::test_damaged_frames",
    ),
    ProvenFailure(
        claim="0.11", failure="a router is killed", outcome="another one places what waits",
        test="unit/gateway/routers/test_router_set.py::test_a_killed_router_is_gone_around_and_its_model_returns",
    ),
    ProvenFailure(
        claim="0.11", failure="Redis is emptied", outcome="tenants and keys come back",
        test="integration/platform/real/test_store_lost.py::test_an_emptied_redis_costs_no_tenant_and_comes_back_whole",
    ),
    ProvenFailure(
        claim="0.11", failure="a prompt crashes its workers", outcome="it costs two, then it is refused",
        test="integration/platform/test_fake.py::"
        "test_a_prompt_that_crashes_workers_costs_two_and_is_refused_by_every_gateway",
    ),
)  # fmt: skip


def measure(_: RowConditions) -> RowResult:
    """The table."""
    return RowResult(
        tables=[
            ResultTable(
                title="Failures, and the tests that make them happen", kind=FigureKind.CALCULATED,
                columns=("claim", "failure", "outcome", "test"),
                rows=[(one.claim, one.failure, one.outcome, f"tests/{one.test}") for one in FAILURES],
            )
        ],
        notes=["`python -m pytest` with one of these names runs that test alone."],
    )  # fmt: skip
