"""A job from file to files: order, checkpoints, resume, what is refused."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest, DependencyDown, ModelNotFound, Overloaded
from stratos.store.local_store import LocalStore
from stratos_offline import __main__ as driver
from stratos_offline.blocks import MAX_TRIES, BlockStore, BlockTask, Row
from stratos_offline.engines.contract import NumberedLine
from stratos_offline.results import ResultFiles
from tests.support.paths import BASE_MODEL
from tests.support.worlds.offline_job import ScriptedEngine, job_options, rows_of, run_scripted, write_lines

PROMPTS = [f"book {number % 3} " * 40 + f"line {number}" for number in range(40)]


def test_answers_are_in_the_order_of_the_file_and_computed_in_that_of_prefixes(tmp_path: Path) -> None:
    file, engine = write_lines(tmp_path / "in.jsonl", PROMPTS), ScriptedEngine()
    progress = run_scripted(job_options(file, tmp_path / "out", block_lines=7), engine)
    assert (progress.num_done, progress.num_failed, progress.num_blocks) == (40, 0, 6)
    found = rows_of(tmp_path / "out" / "output.jsonl")
    assert found == [{"custom_id": f"c{number}", "text": text[::-1]} for number, text in enumerate(PROMPTS)]
    books = [number % 3 for number in engine.answered]
    assert sorted(engine.answered) == list(range(40))
    assert sum(one != two for one, two in pairwise(books)) == 2
    assert list((tmp_path / "out").glob("blocks-*/*/*")) == []


def test_errors_have_a_file_of_their_own(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", ["good", "bad one", "good", "bad two"])
    progress = run_scripted(job_options(file, tmp_path / "out"), ScriptedEngine())
    assert progress.num_failed == 2
    assert [row["custom_id"] for row in rows_of(tmp_path / "out" / "output.jsonl")] == ["c0", "c2"]
    assert [row["custom_id"] for row in rows_of(tmp_path / "out" / "errors.jsonl")] == ["c1", "c3"]


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    options = job_options(write_lines(tmp_path / "in.jsonl", ["one", "two"]), tmp_path / "out")

    def begin_again(lines: Sequence[NumberedLine]) -> None:
        with pytest.raises(BadRequest, match="another run"):
            run_scripted(options, ScriptedEngine())

    assert run_scripted(options, ScriptedEngine(before=begin_again)).num_failed == 0
    assert len(rows_of(tmp_path / "out" / "output.jsonl")) == 2


def test_a_driver_that_ends_goes_on_with_nothing_computed_twice(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", PROMPTS)
    options = job_options(file, tmp_path / "out", block_lines=5)

    def fail_at_fourth(lines: Sequence[NumberedLine]) -> None:
        if len(first.answered) == 15:
            raise Overloaded("the machine goes")

    first, second = ScriptedEngine(before=lambda lines: fail_at_fourth(lines)), ScriptedEngine()
    with pytest.raises(Overloaded):
        run_scripted(options, first)
    assert not (tmp_path / "out" / "output.jsonl").exists()
    progress = run_scripted(replace(options, block_lines=7), second, now_unix_s=5)
    assert (progress.num_kept_blocks, progress.num_done) == (3, 40)
    assert sorted(first.answered + second.answered) == list(range(40))
    assert len(rows_of(tmp_path / "out" / "output.jsonl")) == 40
    third = ScriptedEngine()
    assert run_scripted(options, third).is_over
    assert third.answered == []


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"dtype": "float32"}}, {"engine": {"max_input_tokens": 5}}, {"name": "batch_1"}, {"salt": "ab"},
        {"engine": {"model_name": "base", "quantization": "int8"}},
    ],
)  # fmt: skip
def test_a_folder_of_another_job_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = write_lines(tmp_path / "in.jsonl", PROMPTS[:2])
    run_scripted(job_options(file, tmp_path / "out"), ScriptedEngine())
    with pytest.raises(BadRequest, match="another file, model or option"):
        run_scripted(job_options(file, tmp_path / "out", **changes), ScriptedEngine())
    write_lines(file, PROMPTS[:3])
    with pytest.raises(BadRequest, match="another file, model or option"):
        run_scripted(job_options(file, tmp_path / "out"), ScriptedEngine())


def test_what_decides_speed_alone_does_not_matter(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", PROMPTS[:2])
    run_scripted(job_options(file, tmp_path / "out"), ScriptedEngine())
    more = {"engine": {"threads": 3, "lines_at_once": 5, "kv_pool_bytes": 1}, "max_engines": 4, "block_lines": 9}
    assert run_scripted(job_options(file, tmp_path / "out", **more), ScriptedEngine()).is_over


def test_a_block_that_was_given_up_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", ["one", "two"])
    options = job_options(file, tmp_path / "out")

    def end(lines: Sequence[NumberedLine]) -> None:
        raise Overloaded("it is gone")

    for _ in range(MAX_TRIES + 1):
        with pytest.raises(Overloaded):
            run_scripted(options, ScriptedEngine(before=end))
        [tried] = (tmp_path / "out").glob("blocks-*/tries/*")
        assert tried.name.endswith("-0"), "a new run begins to count again"
    assert run_scripted(options, ScriptedEngine()).is_over


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("no json", "line 2: it is not JSON"),
        (json.dumps({"custom_id": "c0", "method": "POST", "url": "/v1/completions", "body": {}}), "earlier line"),
        (json.dumps({"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": {}}), "one endpoint"),
        (json.dumps({"custom_id": "x", "method": "GET", "url": "/v1/completions", "body": {}}), "method must be POST"),
    ],
)
def test_a_file_is_refused_as_an_upload_is(tmp_path: Path, line: str, text: str) -> None:
    file = write_lines(tmp_path / "in.jsonl", ["one"])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(BadRequest, match=text):
        run_scripted(job_options(file, tmp_path / "out"), ScriptedEngine())
    assert not (tmp_path / "out").exists()


def test_a_pipe_and_a_folder_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(BadRequest, match="no regular file"):
            run_scripted(job_options(path, tmp_path / "out"), ScriptedEngine())


def test_a_file_that_is_not_there_and_a_foreign_model(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        run_scripted(job_options(tmp_path / "none", tmp_path / "out"), ScriptedEngine())
    file = write_lines(tmp_path / "in.jsonl", ["one"])
    file.write_text(file.read_text().replace('"base"', '"other"'))
    with pytest.raises(ModelNotFound, match="other"):
        run_scripted(job_options(file, tmp_path / "out"), ScriptedEngine())


async def test_results_of_many_buckets_are_one_file_in_order(tmp_path: Path) -> None:
    async def blocks() -> AsyncIterator[list[Row]]:
        for begin in range(10):
            yield [(number, number % 4 > 0, f"{number}") for number in range(begin, 1000, 10)]

    files = ResultFiles(tmp_path, 1000, 10**9)
    assert await files.write(blocks()) == (750, 250)
    lines = (tmp_path / "output.jsonl").read_text().split()
    assert lines == [str(number) for number in range(1000) if number % 4]
    assert not (tmp_path / ".sorting").exists()


def test_checkpoints_that_were_damaged_are_computed_again(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", PROMPTS[:9])
    options, calls = job_options(file, tmp_path / "out", block_lines=3), list[int]()

    def fail_at_third(lines: Sequence[NumberedLine]) -> None:
        calls.append(len(lines))
        if len(calls) == 3:
            raise Overloaded("the machine goes")

    with pytest.raises(Overloaded):
        run_scripted(options, ScriptedEngine(before=fail_at_third))
    first, second = sorted((tmp_path / "out").glob("blocks-*/results/*"))
    first.write_bytes(first.read_bytes()[:60])
    second.write_bytes(b"")
    progress = run_scripted(options, ScriptedEngine())
    assert (progress.num_kept_blocks, progress.num_done) == (0, 9)
    assert len(rows_of(tmp_path / "out" / "output.jsonl")) == 9


def test_a_store_that_fails_at_the_end_has_nothing_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, url = ["bad", *PROMPTS], (tmp_path / "store").as_uri()
    options = job_options(write_lines(tmp_path / "in.jsonl", prompts), tmp_path / "out", block_lines=9, store_url=url)
    delete, dropped = LocalStore.delete, list[str]()

    async def fail_at_third(store: LocalStore, key: str) -> None:
        dropped.append(key)
        if len(dropped) == 3:
            raise DependencyDown("the store goes")
        await delete(store, key)

    monkeypatch.setattr(LocalStore, "delete", fail_at_third)
    with pytest.raises(DependencyDown):
        run_scripted(options, ScriptedEngine())
    assert len(rows_of(tmp_path / "out" / "output.jsonl")) == len(PROMPTS)
    again = ScriptedEngine()
    progress = run_scripted(options, again)
    assert (again.answered, progress.num_done, progress.num_failed) == ([], len(prompts), 1)
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_what_a_killed_process_left_half_written_goes_with_the_blocks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = job_options(write_lines(tmp_path / "in.jsonl", PROMPTS), out, block_lines=9)

    def leave(lines: Sequence[NumberedLine]) -> None:
        [folder] = out.glob("blocks-*")
        (folder / "blocks" / ".k.0.part").write_bytes(b"half")

    run_scripted(options, ScriptedEngine(before=leave))
    assert sorted(path.name for path in out.iterdir()) == [".lock", "errors.jsonl", "job.json", "output.jsonl"]


def test_a_file_that_changes_while_it_is_cut_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, put = write_lines(tmp_path / "in.jsonl", ["one", "two"]), BlockStore.put_lines

    async def change(store: BlockStore, task: BlockTask, content: bytes) -> None:
        await put(store, task, content)
        write_lines(file, ["one", "two", "three"])

    monkeypatch.setattr(BlockStore, "put_lines", change)
    engine = ScriptedEngine()
    with pytest.raises(BadRequest, match="changed while it was read"):
        run_scripted(job_options(file, tmp_path / "out"), engine)
    assert engine.answered == []


def test_two_jobs_of_one_second_and_one_store_do_not_meet(tmp_path: Path) -> None:
    file, url = write_lines(tmp_path / "in.jsonl", PROMPTS[:6]), (tmp_path / "store").as_uri()
    one, other = (job_options(file, tmp_path / name, block_lines=2, store_url=url) for name in ("a", "b"))

    def run_other(lines: Sequence[NumberedLine]) -> None:
        if not (tmp_path / "b").exists():
            thread = threading.Thread(target=run_scripted, args=(other, ScriptedEngine()))
            thread.start()
            thread.join()

    run_scripted(one, ScriptedEngine(before=run_other))
    found = [(tmp_path / name / "output.jsonl").read_bytes() for name in ("a", "b")]
    assert found[0] == found[1] != b""


async def test_long_results_do_not_fill_memory(tmp_path: Path) -> None:
    async def blocks() -> AsyncIterator[list[Row]]:
        for number in reversed(range(80)):
            yield [(number, True, "x" * 1_000_000)]

    tracemalloc.start()
    try:
        await ResultFiles(tmp_path, 80, 80_000).write(blocks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "output.jsonl").stat().st_size == 80 * 1_000_001
    assert peak < 25_000_000


def test_a_disk_that_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_lines(tmp_path / "in.jsonl", ["one"])
    (tmp_path / "out").write_text("a file where the folder has to be")
    options = {"file": str(file), "out": str(tmp_path / "out"), "engine": {"model_path": str(BASE_MODEL)}}
    monkeypatch.setattr("sys.argv", ["stratos_offline", json.dumps(options)])
    assert driver.main() == 1
    assert "error: [Errno 17]" in capsys.readouterr().err
