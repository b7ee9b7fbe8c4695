"""Numbers of how the gateway deals with its routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutersConfig:
    """How routers are found and when one is given up."""

    resolve_interval_s: Annotated[float, Gt(0)] = 2.0
    """How often host names in router_addresses are resolved again; each address of a name is a router."""
    check_interval_s: Annotated[float, Gt(0)] = 0.25
    """How often each router is asked something while calls wait there, else once a second; whether it serves it tells
    by itself."""
    silence_timeout_s: Annotated[float, Gt(0)] = 1.5
    """A router that has not answered that for so long is away; requests that wait there ask another one. Time in which
    the gateway itself was held up does not count."""
    max_backoff_s: Annotated[float, Gt(0)] = 1.0
    """Longest pause between two tries to reach a router that is away; pauses begin at 0.05 s and are jittered."""
