"""``stratos autoscaler explain``: what the autoscaler decided, on what, and what stood in the way."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from stratos.api.autoscaler.v1 import autoscaler_pb2, autoscaler_pb2_grpc
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.local.running import list_processes
from stratos.common.errors import DependencyDown, NotFound
from stratos.common.tls.identity import PeerRole
from stratos.common.tls.settings import TlsConfig
from stratos.core.gateway_load import TTFT_BOUNDS_S
from stratos.pki.local import dial_as, dialer_of
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.dialer import Dialer

TIMEOUT_S = 5.0
LONGEST_TTFT_MS = 1000 * TTFT_BOUNDS_S[-1]
TRIES = 8
"""A Service leads to any replica; the one that acts has the decisions."""


@dataclass(frozen=True, slots=True)
class AutoscalerAddress:
    """Where an autoscaler answers, and how to connect."""

    address: str
    dialer: Dialer


async def find_autoscaler(facts: PlatformFacts) -> AutoscalerAddress:
    """That of a running platform of this machine.

    Raises:
        NotFound: it has none.
    """
    for process in await list_processes(facts):
        if process.name == "autoscaler" and process.address:
            return AutoscalerAddress(process.address, dial_as(facts.tls_folder, PeerRole.SUPERVISOR))
    raise NotFound("no autoscaler runs on this platform")


def given_autoscaler(address: str, tls: TlsConfig | None) -> AutoscalerAddress:
    """One at an address; with mTLS by an administrator's certificate."""
    return AutoscalerAddress(address, dialer_of(tls))


async def read_decisions(target: AutoscalerAddress, most: int) -> autoscaler_pb2.ListDecisionsResponse:
    """The latest decisions, of the replica that acts if one of several tries finds it.

    Raises:
        DependencyDown: no autoscaler answers.
    """
    answer: autoscaler_pb2.ListDecisionsResponse
    for _ in range(TRIES):
        async with (
            target.dialer.channel(target.address, PeerRole.AUTOSCALER) as channel,
            translate_errors(peer="the autoscaler", lost=DependencyDown),
        ):
            stub = autoscaler_pb2_grpc.AutoscalerServiceStub(channel)
            request = autoscaler_pb2.ListDecisionsRequest(max_entries=most)
            answer = await stub.ListDecisions(request, timeout=TIMEOUT_S)
        if answer.is_active:
            break
    return answer


def decisions_json(answer: autoscaler_pb2.ListDecisionsResponse, now: datetime.datetime) -> dict[str, Any]:
    """The answer as data; times are of this machine's clock."""
    return {
        "is_active": answer.is_active,
        "problem": answer.problem,
        "decisions": [_decision_json(decision, now) for decision in answer.decisions],
    }


def _decision_json(decision: autoscaler_pb2.Decision, now: datetime.datetime) -> dict[str, Any]:
    inputs = decision.inputs
    return {
        "at": _at(now, decision.age_ms),
        "last_at": _at(now, decision.last_age_ms),
        "num_times": decision.num_times,
        "role": decision.role,
        "model": decision.model,
        "mode": decision.mode,
        "direction": decision.direction,
        "reason": decision.reason,
        "blocked": decision.blocked,
        "desired": decision.desired,
        "victim": decision.victim,
        "inputs": None
        if not decision.HasField("inputs")
        else {
            "num_live": inputs.num_live,
            "num_out": inputs.num_out,
            "num_starting": inputs.num_starting,
            "num_draining": inputs.num_draining,
            "backlog": inputs.backlog,
            "utilisation": round(inputs.utilisation, 3),
            "ttft_p95_ms": round(_ttft_ms(inputs)) if inputs.HasField("ttft_p95_ms") else None,
            "is_partial": inputs.is_partial,
        },
    }


def decisions_text(answer: autoscaler_pb2.ListDecisionsResponse, now: datetime.datetime) -> str:
    """One line a decision, the newest last."""
    head = "this autoscaler acts" if answer.is_active else "this autoscaler stands by: another one acts, or none"
    lines = [head, *([f"no data now: {answer.problem}"] if answer.problem else [])]
    return "\n".join([*lines, *(_line(decision, now) for decision in answer.decisions)])


def _line(decision: autoscaler_pb2.Decision, now: datetime.datetime) -> str:
    pool = f"{decision.role} {decision.model}".strip()
    what = {"up": f"up to {decision.desired}", "down": f"down to {decision.desired}"}.get(decision.direction, "hold")
    victim = f", {decision.victim} leaves" if decision.victim else ""
    blocked = f" (wanted: {decision.blocked})" if decision.blocked else ""
    times = f"  x{decision.num_times}, until {_at(now, decision.last_age_ms)[11:19]}" if decision.num_times > 1 else ""
    text = f"{_at(now, decision.age_ms)[11:19]}  {pool} [{decision.mode}]: {what} because of {decision.reason}"
    return f"{text}{blocked}{victim}; {_inputs_text(decision)}{times}"


def _inputs_text(decision: autoscaler_pb2.Decision) -> str:
    if not decision.HasField("inputs"):
        return "no data"
    inputs = decision.inputs
    states = {"live": inputs.num_live, "out": inputs.num_out, "starting": inputs.num_starting}
    workers = ", ".join(f"{count} {state}" for state, count in states.items() if count) or "no worker"
    leaving = f", {inputs.num_draining} draining" if inputs.num_draining else ""
    more = "at least " * (inputs.ttft_p95_ms > LONGEST_TTFT_MS)
    ttft = f", TTFT p95 {more}{_ttft_ms(inputs):.0f} ms" if inputs.HasField("ttft_p95_ms") else ""
    partial = ", a router is missing" if inputs.is_partial else ""
    return f"{workers}{leaving}; {inputs.backlog} waiting, {inputs.utilisation:.0%} in use{ttft}{partial}"


def _ttft_ms(inputs: autoscaler_pb2.Inputs) -> float:
    """The percentile; what is beyond all counts is infinite, and is told as the last of their bounds."""
    return min(inputs.ttft_p95_ms, LONGEST_TTFT_MS)


def _at(now: datetime.datetime, age_ms: int) -> str:
    return (now - datetime.timedelta(milliseconds=age_ms)).isoformat(timespec="seconds")
