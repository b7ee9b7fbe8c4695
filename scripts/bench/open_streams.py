#!/usr/bin/env python3
"""Open more and more streams through two gateways, until one of the numbers asked for is not borne, and say by whom.

    python -m scripts.bench.open_streams --out benchmarks/results/open-streams-{cpu}-2core-cpu.json

The platform is ``stratos up`` with two gateways, two routers and four simulated workers.  A step of theirs takes
``--step-ms``, and every stream gets a token in each.  The client asks again on a connection when its answer has ended;
for a load of requests see ``request_rate``.  A rung is borne if the streams get ``--least`` of the tokens that the
steps give.  Cores are those of the kernel's clocks for each process; the profile is ``py-spy``'s of one gateway
(``chunk_profile``).  The client shares the machine and is counted.  ``outcome`` is the answer: the number that was
borne, the one that was not, and cores and profile where they end.  ``stratos reproduce committed-figures`` has it from
a committed file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from httptools import HttpParserError

from scripts.bench.chunk_profile import RATE_HZ, sampler, shares
from scripts.bench.gateway_cost import (
    LONG_TOKENS,
    PROMPT_TOKENS,
    WARM_CHUNKS,
    Load,
    child_commands,
    cpu_s,
    engine_settings,
    gateway_pid,
)
from scripts.bench.harness import flag, run_bench, show, table
from stratos.reproduce.load.local_platform import Platform, running_platform
from stratos.reproduce.machine import busy_and_total_s

ARGUMENTS = ("--engine", "fake", "--prefill", "0", "--decode", "4", "--max-decode", "4", "--gateways", "2",
             "--routers", "2", "--no-fork-server")  # fmt: skip
BLOCKS_EACH = -(-(PROMPT_TOKENS + LONG_TOKENS) // 16)
"""Of a stream that all streams of one worker could have: each block is 200 bytes of a simulated worker."""
PROFILE = flag(
    "--profile", default=str(Path(tempfile.gettempdir()) / "stratos-router-peers"),
    help="folder of the sampler's environment, which is made there; empty: no profile",
)  # fmt: skip
OPEN_S = 180
"""Seconds in which all streams of a rung must be open."""
COLUMNS = ("streams", "", "tokens/s", "of due", "cores", "gateways", "routers", "workers", "client", "load")
KINDS = {"stratos_gateway": "gateways", "stratos_router": "routers", "stratos_decode_worker": "workers"}


def settings(streams: int) -> dict[str, str]:
    """What so many streams of one tenant need of gateways and workers: no bound of theirs is to end a rung."""
    open_ = str(streams + 100)
    return {
        "STRATOS_GATEWAY_HTTP__MAX_CONNECTIONS": open_,
        "STRATOS_GATEWAY_REQUESTS__MAX_OPEN": open_,
        "STRATOS_GATEWAY_REQUESTS__MAX_OPEN_PER_TENANT": open_,
        "STRATOS_GATEWAY_REQUESTS__MAX_OPEN_BODIES": open_,
        "STRATOS_GATEWAY_REQUESTS__MAX_OPEN_BODIES_PER_TENANT": open_,
        "STRATOS_ROUTER_QUEUE__MAX_REQUESTS": open_,
        "STRATOS_ROUTER_QUEUE__TTL_S": str(OPEN_S),
        "STRATOS_GATEWAY_REQUESTS__PLACEMENT_TIMEOUT_S": str(OPEN_S),
        "STRATOS_DECODE_WORKER_FAKE__NUM_BLOCKS": str(BLOCKS_EACH * streams),
        "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": open_,
        "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_WAITING": open_,
        "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_BATCHED_TOKENS": str(8192 + PROMPT_TOKENS * streams),
        "STRATOS_DECODE_WORKER_SCHEDULER__STEP_TIME_BUDGET_MS": "0",
    }


def cpu_by_kind(platform: Platform) -> dict[str, float]:
    """CPU seconds so far of the platform's processes, and of this one."""
    found = {"client": time.process_time()}
    for pid, command in child_commands(platform.process.pid).items():
        kind = next((kind for name, kind in KINDS.items() if name in command), "others")
        found[kind] = found.get(kind, 0.0) + cpu_s(pid)
    return found


async def attempt(platform: Platform, streams: int, args: argparse.Namespace) -> dict[str, Any]:
    """A rung, or why it has no figures: a refusal, or streams that have no tokens in time."""
    try:
        async with asyncio.timeout(OPEN_S + args.seconds):
            return await rung(platform, streams, args)
    except (RuntimeError, OSError, HttpParserError) as error:  # a parser's is of what its callback raised
        why = str(error.__context__ or error)[:200] or f"not all of them had tokens within {OPEN_S} s"
        return {"streams": streams, "ended": why, "of_due": 0.0, "load_average": round(os.getloadavg()[0], 1)}


async def rung(platform: Platform, streams: int, args: argparse.Namespace) -> dict[str, Any]:
    """One number of streams."""
    load = Load(platform, args.tokens)
    await load.open(streams)
    try:
        await load.until(lambda: min(load.num_chunks) >= min(WARM_CHUNKS, 2 * args.tokens))
        before, tokens, began_s = cpu_by_kind(platform), sum(load.num_chunks), time.monotonic()
        busy_before_s, _ = busy_and_total_s()
        profiled = asyncio.create_task(profile(platform, args))
        await load.until(lambda: time.monotonic() - began_s >= args.seconds and profiled.done())
        took_s = time.monotonic() - began_s
        rate = (sum(load.num_chunks) - tokens) / took_s
        cores = {kind: round((now - before[kind]) / took_s, 3) for kind, now in cpu_by_kind(platform).items()}
        busy_s, _ = busy_and_total_s()
    finally:
        await load.close()
    due = streams / (args.step_ms / 1000)
    return {
        "streams": streams, "tokens_per_s": round(rate, 1), "of_due": round(rate / due, 3), "cores": cores,
        "machine_cores": round((busy_s - busy_before_s) / took_s, 3), "load_average": round(os.getloadavg()[0], 1),
        "percent": profiled.result(),
    }  # fmt: skip


async def profile(platform: Platform, args: argparse.Namespace) -> dict[str, float]:
    """Shares of one gateway's event loop; none without a folder for the sampler."""
    if not args.profile:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        command = [str(sampler(Path(args.profile))), "record", "-p", str(gateway_pid(platform)), "-d",
                   str(args.seconds), "-r", str(RATE_HZ), "-f", "raw", "-o", file.name, "--nonblocking"]  # fmt: skip
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await process.wait()
        return shares(file.read().decode())


def prepare(args: argparse.Namespace) -> None:
    """Lift the limit of files, which gateways inherit: a connection is one at each end. Install the sampler."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.profile:
        Path(args.profile).mkdir(parents=True, exist_ok=True)
        sampler(Path(args.profile))  # takes minutes the first time


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Rungs up to the first that is not borne."""
    numbers = [int(text) for text in args.streams.split(",")]
    prepare(args)
    rungs: list[dict[str, Any]] = []
    with engine_settings(args.step_ms):
        os.environ |= settings(max(numbers))
        with running_platform(*ARGUMENTS) as platform:
            for streams in numbers:
                rungs.append(asyncio.run(attempt(platform, streams, args)))
                show(rungs[-1])
                if rungs[-1]["of_due"] < args.least:
                    break
    platform_is = f"stratos up {' '.join(ARGUMENTS)} (steps of {args.step_ms:g} ms)"
    return {
        "platform": platform_is, "tokens": args.tokens, "outcome": outcome(rungs, args.least), "rungs": rungs,
        "table": table(COLUMNS, map(_cells, rungs)),
    }  # fmt: skip


def outcome(
    rungs: Sequence[Mapping[str, Any]], least: float, number: str = "streams", rate: str = "tokens_per_s"
) -> dict[str, Any]:
    """Numbers that were borne and were not, with cores and profile of the largest that has them.

    Args:
        rungs: in ascending order.
        least: share of what was due with which one is borne.
        number: field of a rung.
        rate: field with what came in a second.
    """
    borne = [one for one in rungs if one["of_due"] >= least]
    measured = [one for one in rungs if "cores" in one]
    last = measured[-1] if measured else {}
    return {
        "borne": borne[-1][number] if borne else 0,
        "tokens_per_s": borne[-1][rate] if borne else 0.0,
        "not_borne": rungs[-1][number] if len(borne) < len(rungs) else None,
        "why": rungs[-1].get("ended", ""),
        "profile_of": last.get(number),
        "machine_cores": last.get("machine_cores"),
        **{name: last.get(name, {}) for name in ("cores", "percent")},
    }


def _cells(one: dict[str, Any]) -> list[str]:
    cores = [str(one.get("cores", {}).get(kind, "")) for kind in (*KINDS.values(), "client")]
    values = [str(one.get(name, "")) for name in ("tokens_per_s", "of_due", "machine_cores")]
    return [str(one["streams"]), "", *values, *cores, str(one["load_average"])]


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--streams", default="1000,4000,7000,10000,14000,19000", help="numbers of streams, one after the other"),
        flag("--tokens", type=int, default=LONG_TOKENS, help="of each answer"),
        flag("--step-ms", type=float, default=1000.0, help="duration of a step of the simulated workers"),
        flag("--least", type=float, default=0.75, help="share of the tokens due with which a rung is borne: the window "
             "cuts a step off, and a worker computes 40 us for each row beside the time that its step simulates"),
        flag("--seconds", type=int, default=20, help="for which a rung is measured"),
        PROFILE,
    )  # fmt: skip
