"""Which autoscaler may start and drain workers: the one that asked first, until it stops asking."""

from __future__ import annotations

from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, Overloaded

MAX_TTL_S = 60.0


class Lease:
    """Belongs to the event loop.

    Args:
        clock: monotonic.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holder = ""
        self._ends_s = 0.0

    def hold(self, holder: str, ttl_s: float) -> bool:
        """Take or extend the lease; whether ``holder`` has it now.

        Raises:
            BadRequest: no name, or a time out of range.
        """
        if not holder:
            raise BadRequest("holder must be set", param="holder")
        if not 0 < ttl_s <= MAX_TTL_S:
            raise BadRequest(f"ttl_ms must be in (0, {MAX_TTL_S * 1000:.0f}]", param="ttl_ms")
        if self._is_with_another(holder):
            return False
        self._holder, self._ends_s = holder, self._clock.now() + ttl_s
        return True

    def check(self, holder: str) -> None:
        """Refuse a caller while another one has the lease.

        Raises:
            Overloaded: another one has it.
        """
        if self._is_with_another(holder):
            raise Overloaded("another autoscaler holds the lease")

    def _is_with_another(self, holder: str) -> bool:
        return holder != self._holder and self._clock.now() < self._ends_s
