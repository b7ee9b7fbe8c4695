"""Mooncake's format: read line by line, refused by line, replayed with its prefixes."""

from __future__ import annotations

import itertools
import json
import resource
import tracemalloc
from pathlib import Path

import pytest

from stratos.cli.load.traces.mooncake import MAX_LINE, TraceExtent, TraceRow, read_rows, write_rows
from stratos.cli.load.traces.replay import Replay, check_replay, replayed
from stratos.cli.load.workload.prompts import token_ids
from stratos.cli.load.workload.senders import Sender, WeightedModel
from stratos.common.errors import BadRequest

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def replay(path: Path, *senders: str, speed: float = 1.0) -> Replay:
    found = tuple(Sender(name=name) for name in senders or ("one",))
    return Replay(path=path, senders=found, models=(WeightedModel("base"),), speed=speed)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ([1], "not a JSON object"),
        (GOOD | {"timestamp": -1}, "timestamp must be"),
        (GOOD | {"timestamp": 5}, "timestamp 5 is before the 10 above it"),
        (GOOD | {"timestamp": "x"}, "timestamp must be"),
        (GOOD | {"timestamp": True}, "timestamp must be"),
        ('{"timestamp": Infinity, "input_length": 1, "output_length": 1}', "timestamp must be"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp must be"),
        (GOOD | {"timestamp": 10, "input_length": 0}, "input_length must be"),
        (GOOD | {"timestamp": 10, "output_length": 1.5}, "output_length must be"),
        (GOOD | {"timestamp": 10, "output_length": 1e300}, "output_length must be a whole number, at least 1 and at"),
        ("[" * 100_000, "not JSON"),
        ({"timestamp": 10, "input_length": 4}, "output_length must be"),
        (GOOD | {"timestamp": 10, "hash_ids": [1, 2, 3]}, "3 hash_ids are more than 600 tokens have blocks"),
        (GOOD | {"timestamp": 10, "hash_ids": 7}, "hash_ids must be"),
        (GOOD | {"timestamp": 10, "tenant": "eve"}, "tenant 'eve' is not in the file"),
        (GOOD | {"timestamp": 10, "prompt": "text"}, "unknown field 'prompt'"),
        ('{"timestamp": 10, "hash_ids": [' + " " * MAX_LINE, "longer than"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(tmp_path: Path, row: object, message: str) -> None:
    path = written(tmp_path, GOOD | {"timestamp": 10}, "", row)
    with pytest.raises(BadRequest, match=f"trace.jsonl:3: {message}"):
        check_replay(replay(path, "ann", "bob"))


def test_a_gap_is_a_pause_and_equal_times_a_burst(tmp_path: Path) -> None:
    path = written(tmp_path, *(GOOD | {"timestamp": ms} for ms in (0, 0, 3_600_000)))
    assert check_replay(replay(path)) == TraceExtent(3, 3600.0)
    assert [session.at_s for session in replayed(replay(path, speed=2.0), "1")] == [0.0, 0.0, 1800.0]


def test_requests_with_the_same_ids_share_their_prompts_blocks(tmp_path: Path) -> None:
    first, same, other = (GOOD | {"hash_ids": ids, "input_length": 1100} for ids in ([1, 2], [1, 2], [1, 3]))
    found = [token_ids(s.turns[0].segments, 4096) for s in replayed(replay(written(tmp_path, first, same, other)), "1")]
    assert [len(ids) for ids in found] == [1100] * 3
    assert found[0][:1024] == found[1][:1024]
    assert found[0][1024:] != found[1][1024:]
    assert found[0][:512] == found[2][:512]
    assert found[0][512:1024] != found[2][512:1024]


def test_the_last_block_of_a_prompt_may_be_short(tmp_path: Path) -> None:
    session = next(replayed(replay(written(tmp_path, GOOD)), "1"))
    assert [segment.num_tokens for segment in session.turns[0].segments] == [512, 88]
    assert session.turns[0].num_output_tokens == 5


def test_lengths_with_a_point_are_whole_numbers(tmp_path: Path) -> None:
    row = GOOD | {"input_length": 600.0, "output_length": 5.0}
    session = next(replayed(replay(written(tmp_path, row)), "1"))
    assert len(token_ids(session.turns[0].segments, 4096)) == 600


def test_rows_name_their_tenant_and_model_and_others_are_spread(tmp_path: Path) -> None:
    rows = [GOOD | {"tenant": "bob", "model": "x"}, *[GOOD] * 60]
    found = list(replayed(replay(written(tmp_path, *rows), "ann", "bob"), "1"))
    assert (found[0].sender.name, found[0].model) == ("bob", "x")
    assert {session.sender.name for session in found[1:]} == {"ann", "bob"}
    assert {session.model for session in found[1:]} == {"base"}


def test_one_sender_stands_for_all_tenants_of_a_file(tmp_path: Path) -> None:
    found = list(replayed(replay(written(tmp_path, GOOD | {"tenant": "eve"})), "1"))
    assert found[0].sender.name == "one"


def test_a_row_is_written_as_it_is_read(tmp_path: Path) -> None:
    rows = [
        TraceRow(timestamp_ms=0, num_prompt_tokens=600, num_output_tokens=3, hash_ids=(4, "ab"), tenant="t", model="m"),
        TraceRow(timestamp_ms=2.5, num_prompt_tokens=1, num_output_tokens=1),
    ]
    path = tmp_path / "out.jsonl"
    assert write_rows(path, rows) == 2
    assert list(read_rows(path)) == rows
    assert path.read_text().startswith(
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, "ab"]'
    )


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(BadRequest, match=r"/nowhere/t\.jsonl cannot be read"):
        check_replay(replay(Path("/nowhere/t.jsonl")))


def long_file(tmp_path: Path, count: int) -> Path:
    """Lines that are all the same, written many at a time."""
    row = TraceRow(timestamp_ms=1, num_prompt_tokens=600, num_output_tokens=3, hash_ids=(4, 5))
    path, part = tmp_path / "long.jsonl", 10_000
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count // part):
            file.write(row.as_line() * part)
    return path


def test_a_long_file_is_not_held_in_memory(tmp_path: Path) -> None:
    count = 20_000
    path = long_file(tmp_path, count)
    tracemalloc.start()
    assert check_replay(replay(path)) == TraceExtent(count, 0.001)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    assert sum(1 for _ in itertools.islice(replayed(replay(path), "1"), count // 10)) == count // 10
    replay_peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 6 * count, "a reference to a row takes 8 bytes"
    assert replay_peak_bytes < 10 * count, "a session that is kept takes some hundred bytes"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_file_of_ten_million_lines_is_streamed(tmp_path: Path) -> None:
    count = 10_000_000
    path = long_file(tmp_path, count)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check_replay(replay(path)) == TraceExtent(count, 0.001)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 64 << 10, "six bytes a line"
