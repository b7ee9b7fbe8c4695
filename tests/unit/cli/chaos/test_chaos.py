"""What ``stratos chaos`` agrees to break, which scenarios it makes of words, and what its rows say of promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.cli.chaos.agreement import OWN_DATA_DIR, check_may_break, check_may_break_cluster, check_may_take
from stratos.cli.chaos.command import parse_scenarios
from stratos.cli.chaos.faults.fault import FAULTS, Fault
from stratos.cli.chaos.kube.cluster_faults import CLUSTER
from stratos.cli.chaos.kube.release import ReleasePlace
from stratos.cli.chaos.promises import PROMISES, observed_promises, promise_table
from stratos.cli.chaos.report import ChaosReport, ChaosRow
from stratos.common.errors import BadRequest, NotFound

NAMES = ["gateway-0", "decode-0", "decode-1", "prefill-0", "router-0", "redis"]


def row(scenario: str, **fields: object) -> ChaosRow:
    return ChaosRow(scenario=scenario, streams=24, **fields)  # type: ignore[arg-type]


def test_only_its_own_data_directory_is_broken_without_being_asked(tmp_path: Path) -> None:
    check_may_break(OWN_DATA_DIR, is_agreed=False)
    check_may_break(tmp_path, is_agreed=True)
    for other in (tmp_path, Path(".stratos")):
        with pytest.raises(BadRequest, match="--yes-break-things"):
            check_may_break(other, is_agreed=False)


def test_a_cluster_is_never_broken_without_being_asked() -> None:
    place = ReleasePlace(namespace="serving", release="stratos")
    check_may_break_cluster(place, is_agreed=True)
    with pytest.raises(BadRequest, match=r"release stratos in serving.*--yes-break-things"):
        check_may_break_cluster(place, is_agreed=False)


def test_what_cannot_be_proved_in_a_cluster_is_refused_by_name() -> None:
    assert set(CLUSTER.kinds) | set(CLUSTER.refused) == {*FAULTS, "drain-node"}
    for kind in CLUSTER.refused:
        with pytest.raises(BadRequest, match=f"{kind} decode-0.*platform of `stratos up`"):
            parse_scenarios([f"{kind} decode-0"], NAMES, CLUSTER)
    for text, match in (("burn decode-0", "no fault"), ("drain gateway-0", "can suffer kill, stop, slow")):
        with pytest.raises(BadRequest, match=match):
            parse_scenarios([text], NAMES, CLUSTER)
    for text in ("drain-node node-2.example", "kill object-store"):
        assert [[str(fault) for fault in one] for one in parse_scenarios([text], NAMES, CLUSTER)] == [[text]]
    with pytest.raises(BadRequest, match="no fault"):
        parse_scenarios(["drain-node node-2"], NAMES)


def test_without_words_a_release_suffers_what_a_cluster_can() -> None:
    asked = {str(fault) for scenario in parse_scenarios([], NAMES, CLUSTER) for fault in scenario}
    assert asked == {
        *(f"{kind} {name}" for kind in ("kill", "stop") for name in NAMES if name != "decode-1"),
        "slow decode-0", "partition decode-0", "drain decode-0",
    }  # fmt: skip


def test_an_object_store_of_others_is_not_taken_without_being_asked(tmp_path: Path) -> None:
    data_dir, other = tmp_path / "data", tmp_path / "other"
    other.mkdir()
    data_dir.mkdir()
    (data_dir / "link").symlink_to(other)
    check_may_take(data_dir / "store", data_dir, is_agreed=False)
    check_may_take(other, data_dir, is_agreed=True)
    for store in (other, data_dir / ".." / "other", data_dir / "link"):
        with pytest.raises(BadRequest, match="--yes-break-things"):
            check_may_take(store, data_dir, is_agreed=False)


def test_words_become_faults() -> None:
    assert parse_scenarios(["kill decode-1 and stop router-0"], NAMES) == [
        (Fault("kill", "decode-1"), Fault("stop", "router-0"))
    ]
    assert parse_scenarios(["full-disk gateway-0", "gone object-store"], NAMES) == [
        (Fault("full-disk", "gateway-0"),),
        (Fault("gone", "object-store"),),
    ]
    others = ["prometheus", "decode-other-0"]
    assert [" and ".join(map(str, scenario)) for scenario in parse_scenarios([], NAMES + others)] == [
        "kill decode-0", "stop decode-0", "kill gateway-0", "stop gateway-0", "kill prefill-0", "stop prefill-0",
        "kill redis", "stop redis", "kill router-0", "stop router-0", "drain decode-0", "slow decode-0",
        "reset decode-0", "partition decode-0", "corrupt decode-0", "full-disk decode-0", "memory decode-0",
        "clock decode-0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("burn decode-0", BadRequest, "no fault"),
        ("kill", BadRequest, "no fault"),
        ("corrupt gateway-0", BadRequest, "can suffer kill, reset, stop, partition"),
        ("gone redis", BadRequest, "object-store for gone"),
        ("kill object-store", BadRequest, "object-store for gone"),
        ("kill decode-7", NotFound, "running: decode-0"),
        ("memory decode-0 and stop redis and memory decode-0", BadRequest, "twice"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_breaks(text: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        parse_scenarios([text], NAMES)


def test_rows_are_held_against_promises(tmp_path: Path) -> None:
    rows = [
        row("kill decode-0", longest_gap_s=0.4),
        row("stop decode-1", longest_gap_s=3.5),
        row("kill router-0", different=1, problems=("0-greedy-base: other texts",)),
        row("kill decode-0 and kill prefill-0", longest_gap_s=9.0),
        row("kill prefill-0", is_felt=False),
        row("partition decode-0", had_effect=False, problems=("partition decode-0 had no effect: ...",)),
        row("memory redis"),
        row("money: kill gateway-0 and kill redis"),
        row("redis and object store gone", different=1, problems=("outage 1: other texts",)),
        row("redis back empty, one key written"),
    ]
    verdicts = {one.promise.pattern: one.verdict for one in observed_promises(rows)}
    assert verdicts == {promise.pattern: "not tried" for promise in PROMISES} | {
        r"kill decode-\d+": "kept",
        r"stop decode-\d+": "kept, late",
        r"(kill|stop|slow|reset|partition) router-\d+": "**broken**",
        r"[a-z-]+ [\w.-]+( and [a-z-]+ [\w.-]+)+": "kept",
        r"money: .+": "kept",
        r"redis and object store gone": "**broken**",
        r"redis back empty, .+": "kept",
        r"(kill|stop|slow|reset|partition) prefill-\d+": "not felt",
        r"partition decode-\d+": "no effect",
    }
    assert [one.kinds for one in observed_promises(rows)][-4:] == [("kill",), ("kill",), (), ()]
    report = ChaosReport(tmp_path / "new" / "chaos.json")
    for one in rows:
        report.add(one)
    page = (tmp_path / "new" / "chaos.md").read_text()
    assert "- 0-greedy-base: other texts" in page
    assert all(line in page for line in promise_table(observed_promises(rows)))
