"""What is left of open batches, and how much of it is due within an hour."""

from __future__ import annotations

from stratos.store.sealed.batch_store import BatchBacklog


def test_each_batch_is_due_by_its_share_of_an_hour() -> None:
    day = BatchBacklog().plus(2400, 24 * 3600.0)
    assert day == BatchBacklog(2400, 100, 24 * 3600.0)
    both = day.plus(60, 1800.0)
    assert both == BatchBacklog(2460, 160, 1800.0)
    assert both.plus(7, -5.0).num_due == 167, "all that is left of one that is late"
