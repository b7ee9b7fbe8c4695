"""The gate on drift at two gateways: no client asks anything, and a revision that is too far off goes back."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratos.store.local_store import LocalStore
from tests.integration.gateway.models.test_added_models import Added, body_of
from tests.integration.gateway.models.test_aliases import both_are_served
from tests.integration.gateway.models.test_rollouts import added, alias_of, shown
from tests.support.paths import MODELS
from tests.support.waiting import eventually

__all__ = ["added"]
DRIFT = "stratos_rollout_drift_nats"


async def start(added: Added, revision: str, bound: float) -> Any:
    body = {"to": revision, "steps": [50, 100], "hold_s": 600, "gates": {"drift": bound}}
    return await added.one.call("PUT", "/rollouts/small", body)


async def test_both_revisions_are_asked_at_the_platforms_cost_and_judged_by_what_they_say(
    added: Added, tmp_path: Path
) -> None:
    other = added.bodies[1]
    added.bodies[1] = await body_of(LocalStore(added.objects), same_tokenizer(tmp_path / "sibling"))
    new, old = await both_are_served(added)  # requests go to the one that was added last
    assert (await added.one.call("POST", "/models", other)).is_success
    await eventually(lambda: _has_started(added, other["digest"], 400), "its tokenizer differs, so it is refused")
    for world in (added.one, added.two):
        world.worker.prompt_shift[new] = -0.25
    assert (await start(added, new, 0.3)).is_success
    await eventually(lambda: _is_applied(added), "one of the gateways has asked both, and weights are written")
    found = await shown(added.two)
    outcomes = {verdict["gate"]: verdict["outcome"] for verdict in found["verdicts"]}
    assert (found["phase"], outcomes) == ("running", {"requests": "waits", "drift": "holds"})
    assert found["drift"]["mean"] == pytest.approx(0.25)
    for world in (added.one, added.two):
        shows = functools.partial(world.service.metrics.get_sample_value, DRIFT, {"model": "small"})
        await eventually(lambda shows=shows: shows() == pytest.approx(0.25), "it is shown")
    assert (await added.two.call("POST", "/rollouts/small/abort")).is_success
    await eventually(lambda: _has_started(added, new, 200, 0.2), "the next one")
    await eventually(lambda: _is_back(added, old), "all go back, before any hold and without a request")
    reason = (await shown(added.two))["reason"]
    assert reason.startswith("drift: 0.2500 nats a token, at most 0.2 (largest 0.2500"), reason
    submits = [submit for world in (added.one, added.two) for submit in world.worker.submits]
    assert {submit.model_digest for submit in submits} == {old, new}
    assert not any(submit.HasField("meter") for submit in submits)  # no tenant pays for it


async def _has_started(added: Added, revision: str, status: int, bound: float = 0.1) -> bool:
    return (await start(added, revision, bound)).status_code == status


async def _is_applied(added: Added) -> bool:
    return bool((await shown(added.one))["is_applied"])


async def _is_back(added: Added, old: str) -> bool:
    found = await shown(added.one)
    return (found["phase"], found["is_applied"]) == ("rolled_back", True) and await alias_of(added.two) == [(old, 100)]


def same_tokenizer(folder: Path) -> Path:
    """The shipped draft model with another context."""
    shutil.copytree(MODELS / "draft", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 500}), encoding="utf-8")
    return folder
