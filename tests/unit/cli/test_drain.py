"""``stratos drain``: who may leave, and what is said at the end."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stratos.cli.drain.worker import DrainOutcome, has_peer, outcome_text
from stratos.core.fleet import Fleet, FleetWorker
from stratos.core.placement import WorkerRole
from tests.support.worlds.fleet_samples import IDENTITY, make_status

OTHER = dataclasses.replace(IDENTITY, model_digest="cd" * 32)


def fleet(*others: dict[str, Any], is_live: bool = True) -> Fleet:
    statuses = [make_status("decode-0"), *(make_status(**{"name": "decode-1", **other}) for other in others)]
    return Fleet(workers=tuple(FleetWorker(ref=s.ref, is_live=is_live or s is statuses[0], status=s) for s in statuses))


@pytest.mark.parametrize(
    ("seen", "is_found"),
    [
        (fleet({}), True),
        (fleet(), False),
        (fleet({"is_draining": True}), False),
        (fleet({"identity": OTHER}), False),
        (fleet({"name": "prefill-0", "role": WorkerRole.PREFILL}), False),
        (fleet({}, is_live=False), False),
        (None, False),
    ],
)
def test_streams_need_another_decode_worker_of_their_model_that_stays(seen: Fleet | None, is_found: bool) -> None:
    assert has_peer(seen, "decode-0") is is_found


def test_the_outcome_says_what_moved_and_whether_the_worker_has_left() -> None:
    moved = DrainOutcome(
        worker_id="decode-0", seconds=1.25, has_left=True, is_known=True, num_handed_back=5, num_offered=4,
        num_fetched=3, num_fetched_tokens=2113,
    )  # fmt: skip
    assert outcome_text(moved) == (
        "decode-0 handed 5 streams back, 4 of them with their KV here; 3 were fetched, 2,113 tokens\n"
        "decode-0 has left after 1.2 s"
    )
    silent = DrainOutcome(worker_id="decode-0", seconds=60.0, has_left=False, is_known=False)
    assert "are recovered\ndecode-0 has not left yet after 60.0 s" in outcome_text(silent)
    idle = DrainOutcome(worker_id="decode-0", seconds=0.1, has_left=True, is_known=True)
    assert "had no stream to hand back" in outcome_text(idle)
