"""The arithmetic of a HorizontalPodAutoscaler over a pool of workers with batch slots, second by second.

A model of the rules that Kubernetes documents, not a run: per-pod averages, tolerance, stabilisation windows, policies.
The pool serves a fluid: a worker finishes ``rate`` requests a second while its slots are full, and fewer below.  What
waits longer than the routers keep it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SYNC_S = 15
TOLERANCE = 0.1
TTL_S = 30


@dataclass(kw_only=True)
class Workers:
    """Pods of one pool, and what waits for them."""

    rate: float
    """Requests a second of one worker."""
    slots: int = 8
    start_s: int = 60
    """From its creation until a pod serves."""
    created: list[int] = field(default_factory=lambda: [-10_000])
    open_requests: float = 0.0

    def step(self, now: int, arrivals: float) -> None:
        """One second."""
        ready = self.num_ready(now)
        done = min(self.running(now) * self.rate / self.slots, self.open_requests)
        waiting_bound = TTL_S * arrivals + ready * self.slots
        self.open_requests = min(waiting_bound, self.open_requests + arrivals - done)

    def num_ready(self, now: int) -> int:
        return sum(now >= created + self.start_s for created in self.created)

    def running(self, now: int) -> float:
        return min(self.open_requests, self.num_ready(now) * self.slots)

    def number(self, name: str, now: int) -> float:
        """What the autoscaler serves under that name."""
        if name == "stratos_batch_load":
            return self.running(now) / self.slots
        return self.open_requests - self.running(now) if name == "stratos_queue_depth" else 0.0

    def resize(self, now: int, size: int) -> None:
        self.created = sorted([*self.created, *[now] * (size - len(self.created))])[:size]


class HpaModel:
    """One HPA, from its rendered spec."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._targets = {
            metric["external"]["metric"]["name"]: _quantity(metric["external"]["target"]["averageValue"])
            for metric in spec["metrics"]
        }
        self._wanted: list[tuple[int, int]] = []
        self._changes: list[tuple[int, int]] = []

    def size(self, now: int, pool: Workers) -> int:
        """How many pods it wants now."""
        current = len(pool.created)
        raw = max(self._ask(name, target, now, pool, current) for name, target in self._targets.items())
        wanted = max(self._spec["minReplicas"], min(self._spec["maxReplicas"], raw))
        self._wanted.append((now, wanted))
        stable = self._stabilised(now, wanted, current)
        size = self._bounded(now, stable, current)
        if size != current:
            self._changes.append((now, size - current))
        return size

    def _ask(self, name: str, target: float, now: int, pool: Workers, current: int) -> int:
        value = pool.number(name, now)
        if abs(value / (target * current) - 1) <= TOLERANCE:
            return current
        return math.ceil(value / target - 1e-9)

    def _stabilised(self, now: int, wanted: int, current: int) -> int:
        """The largest of the window where it shrinks, the smallest where it grows."""
        for rule, pick, is_its in (("scaleUp", min, wanted > current), ("scaleDown", max, wanted < current)):
            if is_its:
                since = now - self._spec["behavior"][rule]["stabilizationWindowSeconds"]
                found = pick([size for at, size in self._wanted if at > since] or [wanted])
                return max(found, current) if rule == "scaleUp" else min(found, current)
        return wanted

    def _bounded(self, now: int, wanted: int, current: int) -> int:
        rule = self._spec["behavior"]["scaleUp" if wanted > current else "scaleDown"]
        limits = [self._limit(now, policy, current, grows=wanted > current) for policy in rule["policies"]]
        return min(wanted, max(limits)) if wanted > current else max(wanted, min(limits))

    def _limit(self, now: int, policy: Mapping[str, Any], current: int, *, grows: bool) -> int:
        """The size that a policy allows, from the one at the begin of its period."""
        recent = [by for at, by in self._changes if at > now - policy["periodSeconds"] and (by > 0) is grows]
        begin = current - sum(recent)
        step = policy["value"] if policy["type"] == "Pods" else begin * policy["value"] / 100
        return math.ceil(begin + step) if grows else math.floor(begin - step)


def watch(hpa: HpaModel, pool: Workers, load: Callable[[int], float], duration_s: int) -> list[tuple[int, int]]:
    """(second, size) at the begin and at every change."""
    seen = [(0, len(pool.created))]
    for now in range(duration_s):
        pool.step(now, load(now))
        if now % SYNC_S == 0:
            pool.resize(now, hpa.size(now, pool))
        if len(pool.created) != seen[-1][1]:
            seen.append((now, len(pool.created)))
    return seen


def _quantity(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
