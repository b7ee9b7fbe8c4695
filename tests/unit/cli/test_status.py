"""What ``stratos status`` says of a worker that is out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stratos.cli.status import PlatformStatus, status_json, status_text
from stratos.core.fleet import Fleet, FleetWorker
from tests.support.worlds.fleet_samples import make_status


def test_a_worker_that_is_not_ready_is_shown_with_its_reason() -> None:
    why = "known tokens give other bits"
    worker = make_status("decode-0", not_ready_reason=why)
    seen = FleetWorker(ref=worker.ref, status=worker, is_live=False, out_reason=f"not_ready: {why}")
    facts: Any = SimpleNamespace(run_id="run", base_url="url")
    status = PlatformStatus(facts=facts, processes=[], fleet=Fleet(workers=(seen,)), router_errors={})
    (shown,) = status_json(status)["workers"]
    assert shown["not_ready_reason"] == why
    assert not shown["is_draining"]
    assert f"not_ready: {why}" in status_text(status)
