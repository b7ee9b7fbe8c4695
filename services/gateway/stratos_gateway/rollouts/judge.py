"""Consequences for a roll-out of the requests of both revisions: the next step, the way back, or more waiting.

    before step 1 ──▶ drift is not measured, or over its bound          ──▶ no weights, back
    at any time   ──▶ a gate is broken beyond chance                    ──▶ back
    hold is over  ──▶ too few requests or answers, no workers, unclear  ──▶ hold longer
                  ──▶ every gate holds                                  ──▶ next step, after the last one the end

A gate looks at what was found for the next step, and at what chance does not explain for the way back (``chance``):
what is between them is unclear, and more requests are waited for.  The errors gate needs the new revision alone, the
one on drift no requests at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stratos.core.ledger.steps import BEYOND, ONE_IN, STEP, bound_us, bucket_of
from stratos.store.counters.arm_counts import NONE_LEFT, ArmCounts, p99_bucket_of
from stratos.store.models.rollout_record import Baseline, RolloutPhase, RolloutRecord
from stratos_gateway.rollouts.blame import PATIENT_S
from stratos_gateway.rollouts.chance import exceeds_p99, exceeds_share, is_worse

LEAST_ERRORS = 20
"""Below the least number of requests, fewer break no gate that allows some: one lost worker fails as many at once."""
NO_COUNTS = ArmCounts()


class GateOutcome(StrEnum):
    """Answer of a gate."""

    HOLDS = "holds"
    WAITS = "waits"
    """There is too little to say."""
    UNCLEAR = "unclear"
    """More than is allowed was found, but chance may do that."""
    BROKEN = "broken"
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
        """The roll-out goes back."""
        return self.outcome is GateOutcome.BROKEN


def verdicts(rollout: RolloutRecord, counts: Mapping[str, ArmCounts]) -> list[GateVerdict]:
    """Answers of a roll-out's gates; the first one is whether there are enough requests.

    Args:
        rollout: its last step goes by the baseline of the step before.
        counts: of all gateways, by digest.
    """
    old, new = counts.get(rollout.old, NO_COUNTS), counts.get(rollout.new, NO_COUNTS)
    found, gates, base = [_enough(rollout, old, new)], rollout.gates, baseline(rollout, counts)
    if gates.errors is not None and new.num_requests:
        found.append(_errors(new, old, gates.errors, rollout.min_requests))
    if gates.drift is not None:
        found.append(_drift(rollout, gates.drift))
    if (num := unanswered(new, base.ttft_p99_us)) > 0:
        found.append(_unanswered(num, new.num_requests, base))
    if gates.ttft_p99 is not None:
        old_p99 = _P99(base.ttft_p99_us, base.num_ttfts, gates.ttft_p99)
        found.append(_times("ttft_p99", new.ttfts, new.left, old_p99, rollout.min_requests))
    if gates.itl_p99 is not None:
        old_p99 = _P99(base.itl_p99_us, base.num_itls, gates.itl_p99)
        found.append(_times("itl_p99", new.itls, NONE_LEFT, old_p99, rollout.min_requests))
    return found


def baseline(rollout: RolloutRecord, counts: Mapping[str, ArmCounts]) -> Baseline:
    """Figures of the old revision: of this step, or of the last one that it had requests at."""
    if rollout.is_last_step:
        return rollout.baseline or Baseline()
    old, least = counts.get(rollout.old, NO_COUNTS), rollout.min_requests
    ttft_us = _p99_us(old.ttfts, old.left, least)
    return Baseline(
        ttft_p99_us=ttft_us,
        num_ttfts=sum(old.ttfts.values()) + _num_from(old.left, ttft_us),
        itl_p99_us=_p99_us(old.itls, NONE_LEFT, least),
        num_itls=sum(old.itls.values()),
        num_requests=old.num_requests,
        num_unanswered=unanswered(old, ttft_us),
    )


def unanswered(counts: ArmCounts, ttft_p99_us: int | None) -> int:
    """Requests that a revision missed, or that left although they waited as long as the old one's p99."""
    return counts.num_missed + _num_from(counts.left, ttft_p99_us)


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
    broken = [v for v in found if v.is_broken]
    if broken:
        return ended(rollout, RolloutPhase.ROLLED_BACK, now_us, "; ".join(v.text for v in broken))
    if not rollout.is_held(now_us) or not has_workers or any(v.outcome is not GateOutcome.HOLDS for v in found):
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


def too_far(rollout: RolloutRecord, now_us: int) -> RolloutRecord | None:
    """The roll-out sent back for its drift, which is judged before any client is on the revision; else ``None``."""
    if rollout.phase is not RolloutPhase.RUNNING or rollout.drift is None or rollout.gates.drift is None:
        return None
    verdict = _drift(rollout, rollout.gates.drift)
    return ended(rollout, RolloutPhase.ROLLED_BACK, now_us, verdict.text) if verdict.is_broken else None


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


def _errors(new: ArmCounts, old: ArmCounts, percent: float, least: int) -> GateVerdict:
    """The new revision by itself; where the old one fails as often now, it is not the new one's fault."""
    num, total, allowed = new.num_errors, new.num_requests, percent / 100
    text = f"errors: {num} of {total} requests, {100 * num / total:.2f} %, at most {percent:g} %"
    if num <= allowed * total:
        return GateVerdict("errors", GateOutcome.HOLDS, text)
    is_told = total >= least or num >= LEAST_ERRORS or not allowed
    outcome = GateOutcome.BROKEN if is_told and exceeds_share(num, total, allowed) else GateOutcome.UNCLEAR
    if old.num_errors and not is_worse(num, total, old.num_errors, old.num_requests):
        outcome = GateOutcome.UNCLEAR
        text += f" (old revision: {old.num_errors} of {old.num_requests})"
    return GateVerdict("errors", outcome, text)


def _drift(rollout: RolloutRecord, most: float) -> GateVerdict:
    """A fact of two sets of weights, so one measurement is enough."""
    if (measured := rollout.drift) is None:
        return GateVerdict("drift", GateOutcome.WAITS, "drift: not measured yet")
    text = f"drift: {measured.mean:.4f} nats a token, at most {most:g}"
    text += f" (largest {measured.largest:.4f}, of {measured.num_tokens} tokens)"
    return GateVerdict("drift", GateOutcome.HOLDS if measured.mean <= most else GateOutcome.BROKEN, text)


def _unanswered(num: int, num_requests: int, base: Baseline) -> GateVerdict:
    """A revision that hangs, or has no room, shows in none of its answers: that alone holds it where it is."""
    old_total = base.num_requests + base.num_unanswered
    total = num + num_requests
    if old_total:
        is_more = is_worse(num, total, base.num_unanswered, old_total)
    else:
        is_more = exceeds_share(num, total, 1 / ONE_IN)
    text = f"unanswered: {num} requests of the new revision beside {num_requests}"
    text += f", {base.num_unanswered} of the old one beside {base.num_requests}"
    return GateVerdict("unanswered", GateOutcome.WAITS if is_more else GateOutcome.HOLDS, text)


@dataclass(frozen=True, slots=True)
class _P99:
    """A p99 of the old revision, and what is allowed above it."""

    us: int | None
    num: int
    """Times that it is of."""
    percent: float


def _times(gate: str, new: Mapping[int, int], left: Mapping[int, int], old: _P99, least: int) -> GateVerdict:
    """More than one in a hundred beyond the bound is a p99 beyond it. Steps are compared, and the last has no bound."""
    if old.us is None:
        text = f"{gate}: of the old revision there are fewer than {least} times, or its p99 is not known"
        return GateVerdict(gate, GateOutcome.WAITS, text)
    most = min(BEYOND - 1, _step_of(old.us) + math.floor(math.log1p(old.percent / 100) / math.log(STEP)))
    num_left = sum(count for bucket, count in left.items() if bucket > most)
    over = num_left + sum(count for bucket, count in new.items() if bucket > most)
    if (total := sum(new.values()) + num_left) < least:
        return GateVerdict(gate, GateOutcome.WAITS, f"{gate}: {total} times of the new revision, at least {least}")
    bucket = p99_bucket_of(new, left)
    shown = "beyond all steps" if bucket is None or (us := bound_us(bucket)) is None else f"{us / 1000:.1f} ms"
    bound = f"{old.us * (1 + old.percent / 100) / 1000:.1f} ms"
    text = f"{gate}: {shown}, at most {bound} ({old.us / 1000:.1f} ms +{old.percent:g} %)"
    if over * ONE_IN <= total:
        return GateVerdict(gate, GateOutcome.HOLDS, text)
    is_broken = exceeds_p99(over, total, old.num // ONE_IN, old.num)
    return GateVerdict(gate, GateOutcome.BROKEN if is_broken else GateOutcome.UNCLEAR, text)


def _p99_us(counts: Mapping[int, int], left: Mapping[int, int], least: int) -> int | None:
    bucket = p99_bucket_of(counts, left) if sum(counts.values()) >= least else None
    return None if bucket is None else bound_us(bucket)


def _num_from(left: Mapping[int, int], us: int | None) -> int:
    """Waits that are in the step of a time, or in a later one; where none is known, those that try any patience."""
    first = bucket_of(1e6 * PATIENT_S) if us is None else _step_of(us)
    return sum(count for bucket, count in left.items() if bucket >= first)


def _step_of(upper_us: int) -> int:
    """The step that ends at ``upper_us``, which ``bound_us`` has rounded up."""
    return bucket_of(upper_us - 1)


def shown(found: Sequence[GateVerdict]) -> list[dict[str, str]]:
    """Verdicts as the admin API shows them."""
    return [{"gate": v.gate, "outcome": v.outcome.value, "text": v.text} for v in found]
