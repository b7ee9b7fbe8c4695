"""What a request says of its revision, by the way it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from stratos.common import errors
from stratos.core.ledger.itls import Itls
from stratos.core.ledger.pricing import Times
from stratos.core.ledger.steps import BEYOND, bucket_of
from stratos.store.counters.arm_counts import ArmCounts, CountName, _counts
from stratos.store.models.rollout_record import RolloutGates, RolloutPhase, RolloutRecord
from stratos_gateway.rollouts.evidence import RolloutEvidence

OLD, NEW = "a" * 64, "b" * 64
GATES = RolloutGates(errors=1)
ROLLOUT = RolloutRecord(
    model="base", old=OLD, new=NEW, steps=(10, 100), hold_s=10, gates=GATES, is_applied=True, epoch=1
)
TTFT = Counter({bucket_of(100_000): 1})
FIRST = Times(ttft_us=100_000)
SPREAD = replace(FIRST, itls=Itls(num=500, steps=((40, 493), (60, 5), (90, 2))))
WAITED = Counter({bucket_of(5_000_000): 1})
GOOD = ArmCounts(1, ttfts=TTFT)
FAILED = ArmCounts(1, 1, ttfts=Counter({BEYOND: 1}))
MISSED = ArmCounts(num_missed=1)
LEFT = ArmCounts(left=WAITED)


class Store:
    """Keeps what is put as it is read again; fails while it is told to."""

    def __init__(self) -> None:
        self.put_arms: dict[CountName, dict[str, ArmCounts]] = {}
        self.is_down = False

    async def put(self, name: CountName, arms: dict[str, ArmCounts]) -> None:
        if self.is_down:
            raise errors.DependencyDown
        self.put_arms[name] = {digest: _counts(json.loads(json.dumps(arm.as_json()))) for digest, arm in arms.items()}


def output(*times: Times, source: str = "workers") -> Any:
    return SimpleNamespace(sections=lambda: {"source": source}, times=lambda received_s: times)


def request(
    error: BaseException | None = None,
    times: Sequence[Times] = (),
    *,
    source: str = "workers",
    declined: errors.StratosError | None = None,
    deadline_s: float = 0.0,
    **prepared: str,
) -> Any:
    """A request of 95 s, looked at in second 100."""
    named = {"base_model": "base", "model": "base", "model_digest": NEW, **prepared}
    return SimpleNamespace(
        prepared=SimpleNamespace(**named),
        followed=None,
        declined=declined,
        output=output(*times, source=source) if times or source != "workers" else None,
        error=error,
        arrival_s=94.0,
        received_s=95.0,
        deadline_s=94.0 + (deadline_s or 60.0),
        http=SimpleNamespace(headers={"x-stratos-deadline-ms": "1"} if deadline_s else {}),
    )


def evidence(store: Any, found: Sequence[RolloutRecord] = (ROLLOUT,)) -> RolloutEvidence:
    clock: Any = SimpleNamespace(now=lambda: 100.0)
    return RolloutEvidence({rollout.model: rollout for rollout in found}.get, store, clock, 1.0)


async def counted(ended: Any, rollout: RolloutRecord = ROLLOUT) -> ArmCounts | None:
    store = Store()
    of_gateway = evidence(store, [rollout])
    of_gateway.note(ended)
    await of_gateway.publish()
    return store.put_arms.get(CountName.of(rollout), {}).get(NEW)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (request(times=[FIRST]), GOOD),
        (request(times=[Times()]), ArmCounts(1)),
        (request(times=[SPREAD]), replace(GOOD, itls=Counter({60: 1}))),  # the p99 of its own, once
        (request(times=[FIRST, Times(ttft_us=50_000)]), GOOD),
        (request(errors.WorkerLost()), FAILED),
        (request(errors.Internal()), FAILED),
        (request(errors.FeatureUnavailable()), FAILED),
        (request(errors.QueueTimeout()), FAILED),  # the platform's own time was over: it hangs
        (request(errors.QueueTimeout(), deadline_s=30), FAILED),
        (request(errors.Overloaded()), FAILED),
        (request(errors.WorkerLost(), [FIRST, Times()]), FAILED),
        (request(errors.WorkerLost(), [SPREAD]), ArmCounts(1, 1, ttfts=TTFT, itls=Counter({BEYOND: 1}))),
        (request(errors.QueueTimeout(), deadline_s=0.001), LEFT),
        (request(errors.DeadlinePassed(), [FIRST], deadline_s=5), GOOD),
        (request(ClientDisconnect()), LEFT),
        (request(ClientDisconnect(), [Times()]), LEFT),
        (request(ClientDisconnect(), [FIRST, Times()]), LEFT),
        (request(ClientDisconnect(), [FIRST]), GOOD),
        (request(errors.Overloaded(reason="load_shed")), MISSED),
        (request(times=[FIRST], source="external", declined=errors.WaitTooLong()), MISSED),
        (request(errors.DeadlinePassed(), declined=errors.WaitTooLong()), MISSED),
        (request(times=[FIRST], declined=errors.WaitTooLong()), GOOD),  # it came back
    ],
)
async def test_a_request_counts_once_and_only_for_what_its_revision_did(ended: Any, expected: ArmCounts) -> None:
    assert await counted(ended) == expected


@pytest.mark.parametrize(
    "ended",
    [
        request(errors.BadRequest()),
        request(errors.Draining()),
        request(errors.DependencyDown()),
        request(errors.StreamMoved(), [FIRST]),
        request(errors.PromptRefused()),
        request(errors.RateLimited()),
        request(errors.ConcurrencyLimited()),
        request(errors.ContentCheckDown()),
        request(times=[FIRST], source="response_cache"),
        request(times=[FIRST], source="stream_record"),
        request(errors.WorkerLost(), source="external"),
        request(times=[FIRST], model=f"base@{NEW[:8]}"),
        request(times=[FIRST], model_digest="c" * 64),
        request(times=[FIRST], base_model=""),
        request(times=[FIRST], base_model="other"),
    ],
)
async def test_what_no_revision_is_to_blame_for_says_nothing(ended: Any) -> None:
    assert await counted(ended) is None


async def test_nothing_counts_in_a_pause_and_totals_wait_for_the_store() -> None:
    assert await counted(request(times=[FIRST]), replace(ROLLOUT, phase=RolloutPhase.PAUSED)) is None
    store = Store()
    of_gateway = evidence(store)
    store.is_down = True
    for _ in range(2):
        of_gateway.note(request(times=[FIRST]))
        with pytest.raises(errors.DependencyDown):
            await of_gateway.publish()
    store.is_down = False
    await of_gateway.publish()
    assert store.put_arms[CountName.of(ROLLOUT)][NEW].num_requests == 2


async def test_a_request_of_a_tag_counts_for_its_roll_out_while_that_runs_and_else_for_its_models() -> None:
    for tag_phase, for_tag in ((RolloutPhase.RUNNING, True), (RolloutPhase.DONE, False)):
        store, tag = Store(), replace(ROLLOUT, model="base@stable", phase=tag_phase)
        of_gateway = evidence(store, [ROLLOUT, tag])
        of_gateway.note(request(times=[FIRST], model="base@stable"))
        await of_gateway.publish()
        assert list(store.put_arms) == [CountName.of(tag if for_tag else ROLLOUT)]
