"""Parts of a worker that its table of requests calls."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Protocol

from stratos.worker.records import RequestRecord


class Prefill(Protocol):
    """Has prompts computed; ``prefill_policy.PrefillPolicy`` is the one of a worker."""

    async def prefill(self, record: RequestRecord, stack: AsyncExitStack) -> None:
        """Bring the prompt's KV to this worker and let the request join the batch.

        What must be given back when the request ends is pushed onto ``stack``. Sets ``record.origin``.
        """
        ...


class StatusNews(Protocol):
    """Told what the next status has to say; ``worker.status.StatusFeed`` is the one of a worker."""

    def notify(self) -> None:
        """A request came that the engine does not know yet."""
        ...

    def note_placement(self, tenant: str, handoff_id: str, now_s: float) -> None:
        """A request of a tenant came that a router has placed here."""
        ...

    def count_output(self, tenant: str, num_tokens: int) -> None:
        """A request of the tenant has got tokens."""
        ...
