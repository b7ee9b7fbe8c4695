"""The last report of each gateway. Nothing here places requests; the autoscaler reads it."""

from __future__ import annotations

from dataclasses import replace

from stratos.core.gateway_load import GatewayLoad

KEPT_S = 10.0
"""A gateway that has been silent for so long is gone."""
MAX_GATEWAYS = 4096


class GatewayLoads:
    """By gateway and model; time is an argument."""

    def __init__(self) -> None:
        self._loads: dict[tuple[str, str], tuple[float, GatewayLoad]] = {}

    def add_report(self, load: GatewayLoad, now: float) -> None:
        """A report; reports of more gateways than there can be are dropped."""
        key = load.gateway, load.model_digest
        if key not in self._loads and len(self._loads) >= MAX_GATEWAYS:
            self._forget(now)
            if len(self._loads) >= MAX_GATEWAYS:
                return
        self._loads[key] = now, load

    def recent(self, now: float) -> tuple[GatewayLoad, ...]:
        """Reports with their age."""
        self._forget(now)
        return tuple(replace(load, age_s=now - at) for at, load in self._loads.values())

    def _forget(self, now: float) -> None:
        self._loads = {key: held for key, held in self._loads.items() if now - held[0] <= KEPT_S}
