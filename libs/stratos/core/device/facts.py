"""Which device a process computes on, as far as it matters to others that want to reach its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A GPU; all empty where there is none."""

    uuid: str = ""
    """``GPU-...``, or ``MIG-...`` of a slice."""
    fabric: str = ""
    """Domain of the NVLink switches that it hangs on, across hosts; empty without one."""
    peers: tuple[str, ...] = ()
    """Devices of this host whose memory it reads and writes, by UUID; itself excluded."""


NO_DEVICE = DeviceFacts()
