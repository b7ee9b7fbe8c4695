"""Consequences for a roll-out of the requests of both revisions: the next step, the way back, or more waiting.

    hold runs     ──▶ a gate is broken beyond chance ──▶ back
    hold is over  ──▶ too few requests, no workers   ──▶ wait
                  ──▶ a gate is broken               ──▶ back
                  ──▶ every gate holds               ──▶ next step, after the last one the end

While the hold runs a gate is looked at many times, so only what chance does not explain ends it early; at the end of
the hold it is decided once, and plainly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stratos.core.ledger.steps import ONE_IN, bound_us, bucket_of
from stratos.store.counters.arm_counts import ArmCounts, p99_bucket_of
from stratos.store.models.rollout_record import Baseline, RolloutPhase, RolloutRecord

_DEVIATIONS = 3.0
"""Standard deviations above the allowed number beyond which more is no chance."""
NO_COUNTS = ArmCounts()


class GateOutcome(StrEnum):
    """Answer of a gate."""

    HOLDS = "holds"
    WAITS = "waits"
    """There is too little to say."""
    BROKEN = "broken"
    CLEARLY_BROKEN = "clearly_broken"
    """Beyond chance."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """One gate at one moment."""

    gate: str
    outcome: GateOutcome
    text: str
    """Measured and allowed, for people."""

    @property
    def is_broken(self) -> bool:
        """Whether it asks for the way back."""
        return self.outcome in (GateOutcome.BROKEN, GateOutcome.CLEARLY_BROKEN)


def verdicts(rollout: RolloutRecord, counts: Mapping[str, ArmCounts]) -> list[GateVerdict]:
    """Answers of a roll-out's gates; the first one is whether there are enough requests.

    Args:
        rollout: its last step goes by the baseline of the step before.
        counts: of all gateways, by digest.
    """
    old, new = counts.get(rollout.old, NO_COUNTS), counts.get(rollout.new, NO_COUNTS)
    enough = _enough(rollout, old, new)
    if enough.outcome is GateOutcome.WAITS:
        return [enough]
    found, gates, base = [enough], rollout.gates, baseline(rollout, counts)
    if gates.errors is not None:
        found.append(_errors(new, gates.errors))
    if gates.ttft_p99 is not None:
        found.append(_times("ttft_p99", new.ttfts, base.ttft_p99_us, gates.ttft_p99, rollout.min_requests))
    if gates.itl_p99 is not None:
        found.append(_times("itl_p99", new.itls, base.itl_p99_us, gates.itl_p99, rollout.min_requests))
    return found


def baseline(rollout: RolloutRecord, counts: Mapping[str, ArmCounts]) -> Baseline:
    """The old revision's p99s: of this step, or of the last one that it had requests at."""
    if rollout.is_last_step:
        return rollout.baseline or Baseline()
    old, least = counts.get(rollout.old, NO_COUNTS), rollout.min_requests
    return Baseline(ttft_p99_us=_p99_us(old.ttfts, least), itl_p99_us=_p99_us(old.itls, least))


def following(
    rollout: RolloutRecord, counts: Mapping[str, ArmCounts], now_us: int, *, has_workers: bool
) -> RolloutRecord | None:
    """The roll-out as it is to be written next; ``None`` leaves it.

    Args:
        rollout: as the store has it.
        counts: of all gateways for its epoch, by digest.
        now_us: by the store's clock.
        has_workers: the new revision has live ones.
    """
    if not rollout.is_counted:
        return None
    found = verdicts(rollout, counts)
    is_held = now_us - rollout.since_us >= 1e6 * rollout.hold_s
    broken = [v for v in found if v.outcome is GateOutcome.CLEARLY_BROKEN or (is_held and v.is_broken)]
    if broken:
        return ended(rollout, RolloutPhase.ROLLED_BACK, now_us, "; ".join(v.text for v in broken))
    if not is_held or not has_workers or any(v.outcome is not GateOutcome.HOLDS for v in found):
        return None
    reason = "; ".join(v.text for v in found)
    if rollout.is_last_step:
        return ended(rollout, RolloutPhase.DONE, now_us, reason)
    return replace(
        rollout,
        step=rollout.step + 1,
        is_applied=False,
        since_us=now_us,
        baseline=baseline(rollout, counts),
        reason=reason,
    )


def ended(rollout: RolloutRecord, phase: RolloutPhase, now_us: int, reason: str) -> RolloutRecord:
    """The roll-out at an end; where its requests go then is still to be written."""
    return replace(rollout, phase=phase, is_applied=False, since_us=now_us, reason=reason)


def applied(rollout: RolloutRecord, now_us: int) -> RolloutRecord:
    """The roll-out once its weights are written: a step begins now, with counts of its own."""
    return replace(rollout, is_applied=True, since_us=now_us, epoch=rollout.epoch + 1)


def _enough(rollout: RolloutRecord, old: ArmCounts, new: ArmCounts) -> GateVerdict:
    arms = {"new": new.num_requests} if rollout.is_last_step else {"old": old.num_requests, "new": new.num_requests}
    outcome = GateOutcome.HOLDS if min(arms.values()) >= rollout.min_requests else GateOutcome.WAITS
    shown = ", ".join(f"{num} of the {arm} revision" for arm, num in arms.items())
    return GateVerdict("requests", outcome, f"requests: {shown}, at least {rollout.min_requests} each")


def _errors(new: ArmCounts, percent: float) -> GateVerdict:
    found = 100 * new.num_errors / new.num_requests
    text = f"errors: {new.num_errors} of {new.num_requests} requests, {found:.2f} %, at most {percent:g} %"
    return GateVerdict("errors", _outcome(new.num_errors, new.num_requests, percent / 100), text)


def _times(gate: str, new: Mapping[int, int], old_us: int | None, percent: float, least: int) -> GateVerdict:
    """More than one in a hundred beyond the bound is a p99 beyond it."""
    if old_us is None:
        text = f"{gate}: of the old revision there are fewer than {least} times, or its p99 is not known"
        return GateVerdict(gate, GateOutcome.WAITS, text)
    if (total := sum(new.values())) < least:
        return GateVerdict(gate, GateOutcome.WAITS, f"{gate}: {total} times of the new revision, at least {least}")
    bound = old_us * (1 + percent / 100)
    over = sum(count for bucket, count in new.items() if bucket > bucket_of(bound))
    bucket = p99_bucket_of(new)
    shown = "beyond all steps" if bucket is None or (us := bound_us(bucket)) is None else f"{us / 1000:.1f} ms"
    text = f"{gate}: {shown}, at most {bound / 1000:.1f} ms ({old_us / 1000:.1f} ms +{percent:g} %)"
    return GateVerdict(gate, _outcome(over, total, 1 / ONE_IN), text)


def _outcome(num: int, total: int, share: float) -> GateOutcome:
    if num <= share * total:
        return GateOutcome.HOLDS
    by_chance = share * total + _DEVIATIONS * math.sqrt(total * share * (1 - share))
    return GateOutcome.CLEARLY_BROKEN if num > by_chance else GateOutcome.BROKEN


def _p99_us(counts: Mapping[int, int], least: int) -> int | None:
    bucket = p99_bucket_of(counts) if sum(counts.values()) >= least else None
    return None if bucket is None else bound_us(bucket)


def shown(found: Sequence[GateVerdict]) -> list[dict[str, str]]:
    """Verdicts as the admin API shows them."""
    return [{"gate": v.gate, "outcome": v.outcome.value, "text": v.text} for v in found]
