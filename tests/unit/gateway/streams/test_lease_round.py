"""Leases in a round: each is renewed once in it, a bounded number with each call, and all after a failure."""

from __future__ import annotations

from collections import Counter

from stratos_gateway.streams.desk import MOST_LEASES, LeaseRound
from stratos_gateway.streams.owned import OwnedStream, Ownership

ROUND_S = 0.6


def stream(number: int) -> OwnedStream:
    return OwnedStream(f"ten_{number % 2}", f"s{number}", Ownership(), 1, lambda error: None)


def renewed(leases: LeaseRound, begin_s: float, end_s: float, turn_s: float) -> Counter[str]:
    """Names of the leases that turns between two moments renew."""
    found: Counter[str] = Counter()
    for turn in range(round((end_s - begin_s) / turn_s)):
        for part in leases.due(begin_s + (turn + 1) * turn_s):
            names = [name for text in part.names.values() for name in text.split()[::2]]
            assert len(names) == part.num <= MOST_LEASES
            found.update(names)
    return found


def test_each_lease_is_renewed_once_in_a_round_at_any_pace_of_turns() -> None:
    for turn_s in (0.01, 0.05, 0.1, 0.3, 0.6):
        leases, names = LeaseRound(ROUND_S, 100.0), set()
        for number in range(2000):
            leases.join(stream(number))
            leases.due(100.0 + number / 2000 * ROUND_S)
            names.add(f"s{number}")
        for place in range(3):
            begin_s = 100.0 + (place + 1) * ROUND_S
            found = renewed(leases, begin_s, begin_s + ROUND_S, turn_s)
            assert found.keys() == names, turn_s
            assert set(found.values()) <= {1, 2}
            assert sum(found.values()) <= 1.1 * len(names)


def test_what_has_left_is_renewed_no_more_and_all_are_after_a_failure() -> None:
    leases = LeaseRound(ROUND_S, 0.0)
    streams = [stream(number) for number in range(6)]
    for place, one in enumerate(streams):
        leases.due(0.1 * place)
        leases.join(one)
    leases.leave(streams[0])
    leases.leave(streams[0])
    expected = {f"s{number}": 1 for number in range(1, 6)}
    assert renewed(leases, ROUND_S, 2 * ROUND_S, 0.05) == expected
    leases.renew_all()
    leases.renew_all()
    assert renewed(leases, 2 * ROUND_S, 2 * ROUND_S + 0.05, 0.05) == expected


def test_a_late_turn_renews_each_once() -> None:
    leases = LeaseRound(ROUND_S, 0.0)
    leases.join(stream(1))
    assert renewed(leases, 0.0, 60.0, 60.0) == {"s1": 1}
