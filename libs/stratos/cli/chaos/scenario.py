"""Streams and faults at once, compared with streams that nothing disturbed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from stratos.cli.chaos.faults.contract import BROKEN, NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import LOSING, MOVING, SILENT, SWEEPING, Fault
from stratos.cli.chaos.report import ChaosRow
from stratos.cli.chaos.streams import (
    TIMEOUT_S,
    StreamResult,
    StreamRun,
    differences,
    lost_records,
    refused_features,
)
from stratos.cli.chaos.target import BreakablePlatform
from stratos.common.errors import DependencyDown, StratosError

Streams = Mapping[str, StreamResult]


async def undisturbed_streams(target: BreakablePlatform) -> Streams:
    """The streams as they must come out.

    Raises:
        DependencyDown: one of them fails without a fault.
    """
    target.without = await refused_features(target.base_url, await target.new_key(), target.models[0])
    run = await _new_run(target, "undisturbed")

    async def nothing(_: asyncio.Event) -> None:
        return

    await run.run(nothing)
    if errors := [f"{result.name}: {result.error}" for result in run.results.values() if result.error]:
        raise DependencyDown(f"streams fail without any fault: {errors[0]}")
    return run.results


async def _new_run(
    target: BreakablePlatform, name: str, *, are_recorded: bool = False, patience_s: float = TIMEOUT_S
) -> StreamRun:
    return StreamRun(
        target.base_url,
        await target.new_key(),
        name,
        target.models,
        are_recorded=are_recorded,
        patience_s=patience_s,
        without=target.without,
        num_tokens=target.num_tokens,
    )


async def run_scenario(target: BreakablePlatform, faults: Sequence[Fault], undisturbed: Streams) -> ChaosRow:
    """Faults at once under streams, and the platform's return from them; without any, the streams alone."""
    gateway_faults = [fault for fault in faults if fault.target.startswith("gateway")]
    are_recorded = bool(gateway_faults) or any(fault.kind in SWEEPING for fault in faults)
    patience_s = min((fault.lasting_s / 2 for fault in gateway_faults if fault.kind in SILENT), default=TIMEOUT_S)
    run = await _new_run(target, f"s{time.monotonic_ns()}", are_recorded=are_recorded, patience_s=patience_s)
    proofs = [f"without {', '.join(target.without)}, which the model refuses"] if target.without else []
    problems: list[str] = []
    open_at_fault: list[int] = []
    was_felt: list[bool] = []
    had_effect: list[bool] = []

    losing = {fault.target for fault in faults if fault.target.startswith("decode") and fault.kind in MOVING}
    workers = losing or {fault.target for fault in faults if fault.target.startswith(("decode", "prefill"))}

    async def strike(in_effect: asyncio.Event) -> None:
        was_felt.append(not workers or await target.is_busy(workers))
        open_at_fault.append(run.num_open())
        strikes = (target.strike(fault, in_effect) for fault in faults)
        for fault, proof in zip(faults, await asyncio.gather(*strikes, return_exceptions=True), strict=True):
            had_effect.append(not isinstance(proof, BaseException))
            if isinstance(proof, NoEffect | StratosError):
                problems.append(f"{fault} had no effect: {proof}")
            elif isinstance(proof, Exception):
                problems.append(f"{fault} failed: {proof!r}")
            elif isinstance(proof, BaseException):
                raise proof
            else:
                proofs.append(str(proof))
                was_felt[0] = was_felt[0] or bool(proof.get(BROKEN))

    try:
        await run.run(strike)
    except TimeoutError:
        problems.append(f"not every stream began, and ended, in {TIMEOUT_S:.0f} s")
    problems += [text for name, got in run.results.items() for text in differences(undisturbed[name], got)]
    num_moved = len(await target.moved(run.name))
    if losing and num_moved:  # work that came between the look and the fault
        was_felt = [True]
    if are_recorded:
        num_returns = sum(result.num_returns for result in run.results.values())
        num_resumed = sum(result.num_resumed for result in run.results.values())
        proofs.append(f"{num_returns} times a client came back, {num_resumed} times to the rest of its record")
        if not any(fault.target == "redis" for fault in faults):
            problems += lost_records(run.results.values())
    if gateway_faults:
        was_felt.append(num_resumed > 0 or not any(fault.kind in LOSING for fault in gateway_faults))
    if not sum(open_at_fault):
        problems.append("no stream was open when the fault came")
    if losing and not num_moved and all(was_felt):
        problems.append("no stream had to move, though a worker that was disturbed had work")
        had_effect.append(False)
    try:
        await target.wait_whole()
    except StratosError as error:
        problems.append(error.message)
    different = {text.split(":")[0] for text in problems if ": other " in text}
    return ChaosRow(
        scenario=" and ".join(map(str, faults)) or "control: no fault",
        streams=len(run.results),
        different=len(different),
        failed=sum(bool(result.error) for result in run.results.values()),
        moved=num_moved,
        longest_gap_s=round(max(result.longest_gap_s for result in run.results.values()), 2),
        effect="; ".join([f"{sum(open_at_fault)} streams open", *proofs]),
        is_felt=all(was_felt),
        had_effect=all(had_effect),
        problems=tuple(problems),
    )


async def run_control(target: BreakablePlatform, fault: Fault) -> ChaosRow:
    """The same fault aimed at no process: its check must say that it had no effect."""
    fault = Fault(fault.kind, NOTHING)
    try:
        proof = await target.strike(fault, asyncio.Event())
    except NoEffect as error:
        return ChaosRow(scenario=f"control: {fault}", streams=0, effect=str(error))
    problem = f"a fault without an effect passed its check: {proof}"
    return ChaosRow(scenario=f"control: {fault}", streams=0, problems=(problem,))
