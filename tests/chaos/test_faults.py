"""Every kind of process but the gateway is killed and stopped, also two at once, under mixed streams: none differs."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.support.chaos.faults import NOTHING, Fault, NoEffect, views
from tests.support.chaos.report import ChaosReport
from tests.support.chaos.streams import StreamResult, StreamRun, differences
from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import PlatformProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
RETURN_TIMEOUT_S = 240.0
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
SCENARIOS = [*((Fault(kind, target),) for target in KINDS for kind in ("kill", "stop")), *PAIRS]  # type: ignore[arg-type]


@pytest.mark.parametrize("faults", SCENARIOS, ids=lambda faults: " and ".join(map(str, faults)))
def test_no_stream_differs(
    platform: PlatformProcess, undisturbed: dict[str, StreamResult], report: ChaosReport, faults: tuple[Fault, ...]
) -> None:
    scenario = " and ".join(map(str, faults))
    run = StreamRun(platform.base_url, new_key(platform), f"s{time.monotonic_ns()}")
    proofs: list[dict[str, object]] = []
    open_at_fault: list[int] = []

    async def strike(in_effect: asyncio.Event) -> None:
        open_at_fault.append(run.num_open())
        proofs.extend(await asyncio.gather(*(fault.strike(platform, in_effect) for fault in faults)))

    asyncio.run(run.run(strike))
    problems = [text for name, got in run.results.items() for text in differences(undisturbed[name], got)]
    num_moved = len(moved(platform, run.name))
    if open_at_fault[0] == 0:
        problems.append("no stream was open when the fault came")
    if any(fault.target.startswith("decode") for fault in faults) and not num_moved:
        problems.append("no stream had to move, so the fault was not felt")
    different = {text.split(":")[0] for text in problems if ": other " in text}
    report.add(
        {
            "scenario": scenario,
            "passed": not problems,
            "streams": len(run.results),
            "different": len(different),
            "failed": sum(bool(result.error) for result in run.results.values()),
            "moved": num_moved,
            "longest_gap_s": round(max(result.longest_gap_s for result in run.results.values()), 2),
            "effect": f"{open_at_fault[0]} streams open; {'; '.join(map(str, proofs))}",
            "problems": problems,
        }
    )
    wait_for_all(platform)
    assert not problems, problems


@pytest.mark.parametrize("kind", ["kill", "stop"])
async def test_a_fault_aimed_at_nothing_fails_the_check_of_its_effect(platform: PlatformProcess, kind: str) -> None:
    with pytest.raises(NoEffect, match="no process"):
        await Fault(kind, NOTHING).strike(platform, asyncio.Event())  # type: ignore[arg-type]
    assert all(view["state"] == "serving" for view in (await views(platform)).values())


def new_key(platform: PlatformProcess) -> str:
    """Key of a new tenant, whose prompts no worker has cached; all gateways know it."""
    tenant = f"chaos-{time.monotonic_ns()}"
    key = platform.stratos("keys", "create", "--tenant", tenant, "--plan", "local").stdout.strip()
    headers = {"authorization": f"Bearer {key}"}

    def is_known() -> bool:  # each call is a connection of its own, at any gateway
        answers = [httpx.get(f"{platform.base_url}/models", headers=headers, timeout=30) for _ in range(12)]
        return all(answer.status_code == httpx.codes.OK for answer in answers)

    wait_until(is_known, "a new key at every gateway", timeout_s=60)
    return key


def moved(platform: PlatformProcess, name: str) -> set[str]:
    """Streams of a run that a gateway resumed at another worker."""
    lines = [line for log in platform.run_dir().glob("logs/gateway-*.log") for line in log.read_text().splitlines()]
    words = (word.strip(",:;()") for line in lines if "goes on elsewhere" in line for word in line.split())
    return {word for word in words if word.startswith(f"{name}-")}


def wait_for_all(platform: PlatformProcess) -> None:
    """Every process serves again, and every router sees every worker."""

    def is_whole() -> bool:
        status = platform.status()
        workers = [worker["is_live"] for worker in status["workers"]]
        serving = all(process["state"] == "serving" for process in status["processes"])
        return serving and not status["router_errors"] and workers == [True] * 5

    wait_until(is_whole, "the return of every process", timeout_s=RETURN_TIMEOUT_S)
