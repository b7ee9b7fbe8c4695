"""Replicas for a day's requests, and what the rest of the platform needs beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stratos.calculators.bounds import above_zero, not_below_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.sheet import Grid, Sheet

_PEAK = Formula("peak_requests_per_s", "requests_per_day / 86400 * peak_factor")
_TOKENS = Formula("peak_tokens_per_s", "peak_requests_per_s * output_tokens")
_NEEDED = Formula("needed_replicas", "ceil(peak_tokens_per_s / (replica_tokens_per_s * load))")
_REPLICAS = Formula("replicas", "needed_replicas + spare_replicas")
_DEVICES = Formula("devices", "replicas * devices_per_replica")
_LOAD = Formula("load_at_peak", "peak_tokens_per_s / (replica_tokens_per_s * needed_replicas)")
_ROWS = Formula("requests_in_flight", "peak_requests_per_s * request_s")
_REQUEST = Formula("request_s", "output_tokens * itl_ms / 1000")
_LEDGER = Formula("ledger_bytes", "requests_per_day * kept_days * entry_bytes")
_ROUTER = Formula("router_cores", "peak_requests_per_s / 509 * 0.31")
ENTRY_BYTES, KEPT_DAYS = 700, 92
"""Of the ledger in Redis: docs/sizing.md, ``LEDGER__ENTRIES_KEPT_DAYS``."""
LOADS = (0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasAsk:
    """A day's load, and what one replica carries."""

    requests_per_day: Annotated[float, "Requests of a day."] = 1e6
    peak_factor: Annotated[float, "Load of the busiest hour over the mean."] = 3.0
    output_tokens: Annotated[int, "Tokens of an answer."] = 200
    replica_tokens_per_s: Annotated[float, "Output tokens/s of a replica, measured or of `plan batch`."] = 0
    itl_ms: Annotated[float, "Milliseconds between tokens."] = 30.0
    devices_per_replica: Annotated[int, "Devices of a replica."] = 1
    load: Annotated[float, "Share of a replica's capacity that is planned with."] = 0.7
    spare_replicas: Annotated[int, "Replicas that may fail."] = 1


def plan_replicas(ask: ReplicasAsk) -> Sheet:
    """Replicas, devices, requests in flight by Little's law, Redis and router.

    Raises:
        BadRequest: a value that makes no sense, by name.
    """
    above_zero(
        requests_per_day=ask.requests_per_day, peak_factor=ask.peak_factor, output_tokens=ask.output_tokens,
        replica_tokens_per_s=ask.replica_tokens_per_s, itl_ms=ask.itl_ms, devices_per_replica=ask.devices_per_replica,
    )  # fmt: skip
    shares(load=ask.load)
    not_below_zero(spare_replicas=ask.spare_replicas)
    peak = _PEAK(requests_per_day=ask.requests_per_day, peak_factor=ask.peak_factor)
    tokens = _TOKENS(peak_requests_per_s=peak.value, output_tokens=ask.output_tokens)
    carried = {"peak_tokens_per_s": tokens.value, "replica_tokens_per_s": ask.replica_tokens_per_s}
    needed = _NEEDED(**carried, load=ask.load)
    replicas = _REPLICAS(needed_replicas=needed.value, spare_replicas=ask.spare_replicas)
    devices = _DEVICES(replicas=replicas.value, devices_per_replica=ask.devices_per_replica)
    at_peak = _LOAD(**carried, needed_replicas=needed.value)
    return Sheet(
        title="Replicas",
        figures=(peak, tokens, needed, replicas, devices, at_peak, *_platform(ask, peak)),
        grids=(_waiting(),),
    )


def _platform(ask: ReplicasAsk, peak: Figure) -> tuple[Figure, ...]:
    request = _REQUEST("without its prompt and its queue", output_tokens=ask.output_tokens, itl_ms=ask.itl_ms)
    streams = _ROWS("Little's law", peak_requests_per_s=peak.value, request_s=request.value)
    ledger = _LEDGER(
        "single entries in Redis, where no object store takes them; with one 70 MB at most",
        requests_per_day=ask.requests_per_day, kept_days=KEPT_DAYS, entry_bytes=ENTRY_BYTES,
    )  # fmt: skip
    why = "measured with full KV pools: 0.31 cores for 509 requests/s"
    return request, streams, ledger, _ROUTER(why, peak_requests_per_s=peak.value)


def _waiting() -> Grid:
    """How waiting grows with the load of one server with random arrivals: 1 / (1 - load), not exponentially."""
    rows = tuple((load, 1 / (1 - load)) for load in LOADS)
    return Grid("Time in the system over time of service, by load (M/M/1)", ("load", "times_service"), rows)
