"""Faults for a platform of 2 routers, 2 decode workers and 1 prefill worker, some at once, and its return from them."""

from __future__ import annotations

import asyncio

from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.local.running import find_platform
from tests.support.worlds.platform_process import PlatformProcess

ROUNDS = [
    (Fault("kill", "decode-0"), Fault("stop", "router-1", 2.0)),
    (Fault("stop", "decode-1", 2.5), Fault("kill", "prefill-0")),
    (Fault("kill", "router-0"), Fault("stop", "prefill-0", 2.0)),
    (Fault("kill", "autoscaler"), Fault("kill", "lora-registry")),
]
NUM_WORKERS = 3


async def strike(platform: PlatformProcess, faults: tuple[Fault, ...]) -> None:
    """Inject faults at once, each with a proof that it took effect."""
    target = ChaosTarget(find_platform(platform.data_dir, platform.run_id), platform.data_dir)
    await asyncio.gather(*(fault.strike(target, asyncio.Event()) for fault in faults))


def is_whole(platform: PlatformProcess) -> bool:
    """Every process serves, and every router sees every worker."""
    status = platform.status()
    serving = all(process["state"] == "serving" for process in status["processes"])
    return serving and not status["router_errors"] and [w["is_live"] for w in status["workers"]] == [True] * NUM_WORKERS
