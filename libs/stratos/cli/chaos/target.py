"""A running platform that may be broken, as scenarios need it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from stratos.cli.chaos.faults.contract import Proof
from stratos.cli.chaos.faults.fault import Fault, Repertoire
from stratos.common.errors import DependencyDown, NotFound

RETURN_TIMEOUT_S = 240.0
KEY_TIMEOUT_S = 60.0
POLL_S = 0.2
NUM_ASKS = 12
"""Connections by which every gateway is met."""


class BreakablePlatform(Protocol):
    """A platform. Every method raises ``StratosError`` where it does not know."""

    tenants: list[str]
    """Made here, and deleted in the end."""
    without: tuple[str, ...]
    """Features of streams that the model refuses."""
    repertoire: Repertoire
    """Faults that it can suffer."""
    num_tokens: int
    """Length of a stream: so many that a fault finds some under way."""

    @property
    def base_url(self) -> str:
        """Address of the API, with /v1."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names that streams ask for; the first one is no adapter."""

    async def about(self) -> str:
        """Name of it, for the report."""

    async def names(self) -> list[str]:
        """Names of its processes."""

    async def prepare(self, faults: Collection[Fault]) -> None:
        """Make ready for these faults, or refuse them before anything breaks."""

    async def new_key(self) -> str:
        """Key of a new tenant, whose prompts no worker has cached; all gateways know it."""

    async def remove_tenants(self) -> None:
        """Delete the tenants that were made here, and their keys with them."""

    async def is_whole(self) -> bool:
        """Whether everything serves, as it did before the first fault."""

    async def wait_whole(self) -> None:
        """Wait for that. Raises ``DependencyDown`` where something stays away."""

    async def is_busy(self, names: Collection[str]) -> bool:
        """Whether one of these workers has requests or hand-offs."""

    async def moved(self, name: str) -> set[str]:
        """Streams of a run that a gateway resumed at another worker."""

    async def strike(self, fault: Fault, in_effect: asyncio.Event) -> Proof:
        """Inject a fault, and wait for its end. Raises ``NoEffect``."""


def new_tenant() -> str:
    """Name of a tenant that no run has had."""
    return f"chaos-{time.monotonic_ns()}"


async def remove_each(tenants: list[str], remove: Callable[[str], Awaitable[Any]]) -> None:
    """Delete tenants; those that cannot be are left in the list. Raises what ``remove`` does, but ``NotFound``."""
    while tenants:
        with suppress(NotFound):
            await remove(tenants[-1])
        tenants.pop()


@dataclass(frozen=True, slots=True)
class Exposition:
    """Metrics that a process shows."""

    owner: str
    text: str

    def total(self, metric: str, is_meant: Callable[[str], bool]) -> float:
        """Sum over the series of a metric that are meant, by their names and labels.

        Raises:
            NotFound: the process has no such metric.
        """
        if f"\n# TYPE {metric} " not in f"\n{self.text}":
            raise NotFound(f"{self.owner} has no metric {metric}")
        lines = [line.rpartition(" ") for line in self.text.splitlines() if re.match(rf"{metric}[ {{]", line)]
        return sum(float(value) for series, _, value in lines if is_meant(series))


def moved_in(logs: Iterable[str], name: str) -> set[str]:
    """Streams of a run that gateways resumed at another worker, as their logs say."""
    lines = [line for log in logs for line in log.splitlines() if "goes on elsewhere" in line]
    words = (word.strip(",:;()") for line in lines for word in line.split())
    return {word for word in words if word.startswith(f"{name}-")}


async def wait_known(base_url: str, key: str) -> None:
    """Wait until all gateways know a key. Raises ``DependencyDown`` where one does not."""
    headers, limits = {"authorization": f"Bearer {key}"}, httpx.Limits(max_keepalive_connections=0)

    async def is_known() -> bool:
        async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=KEY_TIMEOUT_S) as client:
            asked = (client.get(f"{base_url}/models", headers=headers) for _ in range(NUM_ASKS))
            answers = await asyncio.gather(*asked)
        return all(answer.status_code == httpx.codes.OK for answer in answers)

    await within(is_known, KEY_TIMEOUT_S, "a new key is not known at every gateway")


async def within(is_so: Callable[[], Awaitable[bool]], seconds: float, otherwise: str) -> None:
    """Ask again and again. Raises ``DependencyDown`` where it is not so in the end."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if await is_so():
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise DependencyDown(f"{otherwise} within {seconds:.0f} s") from None
