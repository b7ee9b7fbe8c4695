"""Versions of a worker's status."""

from __future__ import annotations

import dataclasses

from stratos.worker.status import StatusVersions
from tests.support.fleet_samples import ledger, make_status


def test_the_version_moves_with_what_admission_depends_on_and_not_with_steps() -> None:
    versions, status = StatusVersions(), make_status()
    assert versions.number(status).version == 1
    stepped = dataclasses.replace(status, engine_step=9, is_computing=True, slow_step_s=0.5)
    numbered = versions.number(stepped)
    assert (numbered.version, numbered.engine_step) == (1, 9)
    assert versions.number(dataclasses.replace(status, blocks=ledger(1000, allocated=1))).version == 2
    assert versions.number(dataclasses.replace(status, is_draining=True)).version == 3
    assert versions.number(status).version == 4
