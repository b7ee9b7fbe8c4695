"""Recounts the block ledger of an engine that has just run out of work, and counts what it found.

The ledger's counts are kept as blocks change hands, so their sum is right in any case: only a recount from the
reference counts, fences and hashes can show that a block was lost or given away twice.  It takes time in proportion to
the pool, so it waits for a moment without work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratos.common.clock import Clock
from stratos.engine.contract.results import AuditCounts

_log = logging.getLogger(__name__)
INTERVAL_S = 10.0
"""Minimum time between two recounts."""


class LedgerAudit:
    """Calls ``verify`` when it is due; ``verify`` raises ``AssertionError`` where the ledger is off."""

    def __init__(self, verify: Callable[[], None], clock: Clock) -> None:
        self._verify, self._clock = verify, clock
        self._last_s = clock.now()
        self.counts = AuditCounts()

    def run_if_due(self) -> bool:
        """Recount, unless the last time was a moment ago; whether it did."""
        now = self._clock.now()
        if now - self._last_s < INTERVAL_S:
            return False
        self._last_s = now
        counts = self.counts
        try:
            self._verify()
            self.counts = AuditCounts(counts.num_sound + 1, counts.num_broken)
        except AssertionError:
            _log.exception("the KV block ledger is off")
            self.counts = AuditCounts(counts.num_sound, counts.num_broken + 1)
        return True
