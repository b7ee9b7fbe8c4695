"""Faults of every kind of process, also several at once, under mixed streams: none differs."""

from __future__ import annotations

import asyncio

import pytest

from stratos.cli.chaos.faults.fault import FAULTS, Fault
from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.chaos.report import ChaosReport
from stratos.cli.chaos.scenario import Streams, run_control, run_scenario

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
KINDS = ("decode-0", "prefill-0", "router-0", "lora-registry", "autoscaler", "redis")
PAIRS = [
    (Fault("kill", "decode-0"), Fault("kill", "decode-1")),
    (Fault("stop", "decode-0"), Fault("stop", "decode-1")),
    (Fault("kill", "decode-0"), Fault("stop", "decode-2")),
    (Fault("kill", "decode-1"), Fault("kill", "prefill-0")),
    (Fault("stop", "decode-1"), Fault("kill", "router-0")),
    (Fault("kill", "decode-2"), Fault("stop", "router-1")),
    (Fault("kill", "prefill-0"), Fault("kill", "prefill-1")),
    (Fault("kill", "router-0"), Fault("kill", "router-1")),
    (Fault("stop", "router-0"), Fault("stop", "router-1")),
    (Fault("kill", "redis"), Fault("kill", "lora-registry")),
    (Fault("kill", "decode-0"), Fault("kill", "redis")),
    (Fault("kill", "autoscaler"), Fault("stop", "lora-registry")),
]
GATEWAY_S = 10.0
"""Of a gateway's fault that is no moment: five times as long as it has its streams to itself."""
MAX_ROUNDS = 3
"""A worker may have nothing to do when its fault comes; then the row says nothing of it."""
OTHERS = [
    (Fault("drain", "decode-2"),),
    (Fault("drain", "decode-0"), Fault("kill", "prefill-1")),
    (Fault("slow", "decode-0"),),
    *(
        (Fault(kind, target),)
        for target in ("decode-1", "prefill-0", "router-0", "redis")
        for kind in ("reset", "partition")
    ),
    (Fault("corrupt", "decode-1"),),
    (Fault("full-disk", "decode-0"),),
    (Fault("full-disk", "gateway-0"),),
    (Fault("memory", "decode-2"),),
    (Fault("gone", "object-store"),),
    *((Fault("clock", target),) for target in ("decode-0", "router-0", "gateway-2")),
    (Fault("kill", "gateway-1"),),
    (Fault("stop", "gateway-0", GATEWAY_S),),
    (Fault("reset", "gateway-2"),),
    *((Fault(kind, "gateway-1", GATEWAY_S),) for kind in ("drain", "partition", "cut-redis", "cut-workers")),
]
SCENARIOS = [*((Fault(kind, target),) for target in KINDS for kind in ("kill", "stop")), *PAIRS, *OTHERS]


@pytest.mark.parametrize("faults", SCENARIOS, ids=lambda faults: " and ".join(map(str, faults)))
def test_no_stream_differs(
    target: ChaosTarget, undisturbed: Streams, report: ChaosReport, faults: tuple[Fault, ...]
) -> None:
    for _ in range(MAX_ROUNDS):
        row = asyncio.run(run_scenario(target, faults, undisturbed))
        report.add(row)
        assert not row.problems
        if row.is_felt:
            return
    pytest.fail("the fault was not felt")


@pytest.mark.parametrize("kind", sorted(FAULTS))
async def test_a_fault_aimed_at_nothing_fails_the_check_of_its_effect(target: ChaosTarget, kind: str) -> None:
    row = await run_control(target, Fault(kind, "decode-0"))
    assert not row.problems
    assert "there is no" in row.effect
    assert await target.is_whole()
