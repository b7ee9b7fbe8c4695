"""What a workload plans: the same for a seed, prefixes shared, turns that grow, weights that are kept."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from pathlib import Path

import pytest

from stratos.cli.load.workload.arrivals import GammaArrivals
from stratos.cli.load.workload.lengths import FixedLength, LogNormalLength, UniformLength
from stratos.cli.load.workload.prompts import Segment, text_of, token_ids
from stratos.cli.load.workload.senders import Sender, WeightedModel, parse_models, read_senders
from stratos.cli.load.workload.sessions import PlannedSession, Workload, first_requests, sessions
from stratos.common.errors import BadRequest

PLAIN = Workload(prompt=FixedLength(16), output=FixedLength(4))


def planned(workload: Workload, count: int = 50, rate: float | None = 10.0, seed: str = "1") -> list[PlannedSession]:
    arrivals = None if rate is None else GammaArrivals(rate)
    return list(itertools.islice(sessions(workload, arrivals, seed), count))


def ids_of(found: list[PlannedSession]) -> list[list[int]]:
    return [token_ids(turn.segments, 4096) for session in found for turn in session.turns]


def test_a_seed_gives_the_same_load_byte_for_byte_and_another_seed_another() -> None:
    workload = Workload(
        prompt=LogNormalLength(100, 1.0), output=UniformLength(1, 50), num_prefixes=3, prefix_tokens=8,
        turns=UniformLength(1, 3), senders=(Sender(name="a"), Sender(name="b")),
    )  # fmt: skip
    first, again, other = planned(workload), planned(workload), planned(workload, seed="2")
    assert repr(first) == repr(again) != repr(other)
    assert ids_of(first) == ids_of(again)


def test_another_rate_sends_the_same_requests_at_other_times() -> None:
    slow, fast, closed = planned(PLAIN, rate=1), planned(PLAIN, rate=10), planned(PLAIN, rate=None)
    assert [s.turns for s in slow] == [s.turns for s in fast] == [s.turns for s in closed]
    assert [s.at_s for s in slow] == pytest.approx([10 * s.at_s for s in fast])
    assert {s.at_s for s in closed} == {0.0}


def test_no_prompt_repeats() -> None:
    found = [tuple(ids) for ids in ids_of(planned(PLAIN, 200))]
    assert len(set(found)) == 200
    assert all(len(ids) == 16 and min(ids) >= 10 and max(ids) < 4096 for ids in found)


def test_prefixes_are_shared_by_the_sessions_that_have_them_and_by_the_warm_up() -> None:
    workload = Workload(prompt=FixedLength(8), output=FixedLength(1), num_prefixes=4, prefix_tokens=32)
    found = Counter(tuple(ids[:32]) for ids in ids_of(planned(workload, 400)))
    assert len(found) == 4
    assert min(found.values()) > 60
    assert {tuple(ids[:32]) for ids in ids_of(planned(workload, 100, seed="1/warm-up"))} == set(found)


def test_a_later_turn_begins_with_all_that_was_said_before() -> None:
    workload = Workload(
        prompt=FixedLength(10),
        output=FixedLength(5),
        num_prefixes=1,
        prefix_tokens=20,
        turns=FixedLength(3),
        think_s=4.0,
    )
    found = planned(workload, 2000)
    first, second, third = (token_ids(turn.segments, 4096) for turn in found[0].turns)
    assert (len(first), len(second), len(third)) == (30, 45, 60)
    assert second[:30] == first
    assert third[:45] == second
    assert [turn.num_prompt_tokens for turn in found[0].turns] == [30, 45, 60]
    pauses = [turn.think_s for session in found for turn in session.turns[1:]]
    assert statistics.fmean(pauses) == pytest.approx(4.0, rel=0.06)
    assert {session.turns[0].think_s for session in found} == {0.0}


def test_senders_and_models_have_their_weights() -> None:
    workload = Workload(
        prompt=FixedLength(1), output=FixedLength(1), senders=(Sender(name="a", weight=3), Sender(name="b")),
        models=(WeightedModel("base"), WeightedModel("x", 4)),
    )  # fmt: skip
    found = planned(workload, 4000)
    assert Counter(s.sender.name for s in found)["a"] == pytest.approx(3000, rel=0.05)
    assert Counter(s.model for s in found)["x"] == pytest.approx(3200, rel=0.05)


def test_requests_are_counted_over_the_turns_of_sessions() -> None:
    workload = Workload(prompt=FixedLength(1), output=FixedLength(1), turns=FixedLength(3))
    found = list(first_requests(sessions(workload, None, "1"), 7))
    assert [len(session.turns) for session in found] == [3, 3, 1]
    assert list(first_requests(sessions(workload, None, "1"), 0)) == []


def test_a_longer_segment_of_a_seed_begins_with_the_shorter_one() -> None:
    short, long = (token_ids([Segment("a", length)], 1000) for length in (5, 50))
    assert long[:5] == short
    assert len(text_of(short).split()) == 5


def test_tenants_are_read_and_their_keys_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(
        json.dumps([{"name": "a", "key": "secret", "class": "gold", "weight": 2}, {"name": "b", "key": "k"}])
    )
    first, second = read_senders(path)
    assert (first.name, first.key, first.class_name, first.weight) == ("a", "secret", "gold", 2.0)
    assert (second.class_name, second.weight) == ("", 1.0)
    assert "secret" not in repr(first)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a list of tenants"),
        ('[{"name": "a"}]', "entry 1 needs name and key"),
        ('[{"name": "a", "key": "k"}, {"name": "b", "key": "k", "wieght": 1}]', "entry 2"),
        ('[{"name": "a", "key": 1}]', "key has a wrong type"),
        ('[{"name": "a", "key": "k", "weight": 0}]', "weight must be above 0"),
        ('[{"name": "a", "key": "k", "weight": Infinity}]', "weight must be above 0"),
        ('[{"name": "a", "key": "k"}, {"name": "a", "key": "l"}]', "twice"),
    ],
)
def test_wrong_tenants_are_refused_by_entry(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(content)
    with pytest.raises(BadRequest, match=message):
        read_senders(path)


def test_models_are_read_with_their_weights() -> None:
    assert parse_models(["base", "adapter=3", "org/a=b"]) == (
        WeightedModel("base"),
        WeightedModel("adapter", 3.0),
        WeightedModel("org/a=b"),
    )
    with pytest.raises(BadRequest, match="above 0"):
        parse_models(["x=0"])
    with pytest.raises(BadRequest, match="above 0"):
        parse_models(["x=inf"])
