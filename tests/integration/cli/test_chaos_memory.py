"""Faults of disk, memory, clock and KV, aimed at a process of the test's own that does what it is told."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratos.cli.chaos.faults import clock, clock_code, host_tier, shortages
from stratos.cli.chaos.faults.contract import NoEffect
from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.faults.waking import undone_in_the_end
from tests.support.chaos.places import OneProcess
from tests.support.chaos.victim import Victim, begun, cancelled, effect_of, running_sleeper, running_victim
from tests.support.waiting import LIMIT_S

EFBIG, ENOMEM = 27, 12
NEW = b"a block of another tenant"
OFFSET_S = time.time() - time.monotonic()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with running_victim(tmp_path) as running:
        yield running


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with running_sleeper() as running:
        yield running


async def test_files_do_not_grow_on_a_full_disk(victim: Victim) -> None:
    place = OneProcess(victim.process.pid)
    with begun(Fault("full-disk", "victim", lasting_s=600), place) as (strike, in_effect):
        await effect_of(strike, in_effect)
        victim.tell("write")
        assert await victim.answer() == f"OSError {EFBIG}"
        with pytest.raises(NoEffect, match="another fault holds the same limit"):
            await Fault("full-disk", "victim", lasting_s=0.01).strike(place, asyncio.Event())
        victim.tell("start")
        child = int(await victim.answer())
        try:
            assert resource.prlimit(child, resource.RLIMIT_FSIZE)[0] == 0
            await cancelled(strike)
            assert resource.prlimit(child, resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
        finally:
            os.kill(child, signal.SIGKILL)
    victim.tell("write")
    assert await victim.answer() == "done"
    place = OneProcess(victim.process.pid, iter([3.0, 5.0]).__next__)
    proof = await Fault("full-disk", "victim", lasting_s=0.01).strike(place, asyncio.Event())
    assert (proof["grown"], proof["log_lines_lost"]) == (0, 2)


async def test_what_is_written_after_a_full_disk_is_no_growth(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def then_written(*arguments: object, by_hand: str) -> Iterator[object]:
        with undone_in_the_end(*arguments, by_hand=by_hand) as hold:
            yield hold
        with next(victim.folder.glob("*.ring")).open("ab") as file:
            file.write(b"a backlog")

    monkeypatch.setattr(shortages, "undone_in_the_end", then_written)
    proof = await Fault("full-disk", "victim", lasting_s=0.01).strike(OneProcess(victim.process.pid), asyncio.Event())
    assert proof["files"] == 2


async def test_a_process_that_a_full_disk_would_kill_is_spared(sleeper: subprocess.Popen[bytes]) -> None:
    """SIGXFSZ has its default there, as in Redis."""
    with pytest.raises(NoEffect, match=r"redis .* would be killed by SIGXFSZ"):
        await Fault("full-disk", "redis", lasting_s=0.01).strike(OneProcess(sleeper.pid), asyncio.Event())


async def test_nothing_more_is_mapped_without_memory(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    place = OneProcess(victim.process.pid)
    with begun(Fault("memory", "victim", lasting_s=600), place) as (strike, in_effect):
        await effect_of(strike, in_effect)
        victim.tell("allocate")
        assert await victim.answer() == f"OSError {ENOMEM}"
        await cancelled(strike)
    victim.tell("allocate")
    assert await victim.answer() == "done"
    proof = await Fault("memory", "victim", lasting_s=0.01).strike(place, asyncio.Event())
    assert proof["address_space"] <= proof["limit"]
    assert proof["threads_refused"] is None, "it has no thread for each of its probes"
    victim.tell("serve")
    address = f"127.0.0.1:{await victim.answer()}"
    place = OneProcess(victim.process.pid, address=address)
    monkeypatch.setattr(shortages, "HELD_S", 0)  # it may be slow to take connections
    proof = await Fault("memory", "victim", lasting_s=0.01).strike(place, asyncio.Event())
    assert proof["threads_refused"] > 0
    monkeypatch.setattr(shortages, "SPARE_BYTES", 1 << 40)
    with pytest.raises(NoEffect, match="had memory for 24 more threads"):
        await Fault("memory", "victim", lasting_s=0.01).strike(place, asyncio.Event())


async def ahead_s(victim: Victim, word: str = "clock") -> float:
    return float(await victim.ask(word)) - time.time()


async def test_a_clock_goes_ahead_for_one_process_and_comes_back(victim: Victim) -> None:
    class Place(OneProcess):
        async def clock_ahead_s(self, name: str) -> float:
            return await ahead_s(victim)

    place, fault = Place(victim.process.pid), Fault("clock", "victim", lasting_s=600)
    with begun(fault, place) as (strike, in_effect):
        await effect_of(strike, in_effect)
        assert await victim.ask("fork") == "done"
        assert abs(await ahead_s(victim, "clock of the fork") - clock.STEP_S) < 60
        assert abs(time.time() - time.monotonic() - OFFSET_S) < 60, "that of others stays"
        with pytest.raises(NoEffect, match="ahead already"):
            await fault.strike(place, asyncio.Event())
        await cancelled(strike)
    assert abs(await place.clock_ahead_s("victim")) < 60
    assert abs(await ahead_s(victim, "clock of the fork")) < 60
    proof = await Fault("clock", "victim", lasting_s=0.01).strike(place, asyncio.Event())
    assert abs(proof["ahead_s"] - clock.STEP_S) < 60


async def test_a_clock_whose_step_comes_after_its_end_is_set_back(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, write = threading.Event(), clock_code.write_code

    def late(pid: int, patches: Sequence[clock_code.Patch], is_over: Callable[[], bool]) -> None:
        begins.set()
        while not is_over():
            time.sleep(0.001)
        write(pid, patches)

    monkeypatch.setattr(clock, "write_code", late)
    with begun(Fault("clock", "victim", lasting_s=600), OneProcess(victim.process.pid)) as (strike, _):
        await asyncio.to_thread(begins.wait, 60)
        await cancelled(strike)
    assert abs(await ahead_s(victim)) < 60


async def test_a_clock_is_stepped_where_threads_stop_one_after_the_other(victim: Victim) -> None:
    """They compute in the clock's own code, in which nothing may be changed."""
    for _ in range(4):
        assert await victim.ask("spin") == "done"
    with begun(Fault("clock", "victim", lasting_s=600), OneProcess(victim.process.pid)) as (strike, in_effect):
        await effect_of(strike, in_effect)
        await cancelled(strike)


def test_code_of_a_process_that_never_stands_still_is_left_in_time(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_code, "LIMIT_S", 0.0)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    with pytest.raises(OSError, match="did not stand still"):
        clock_code.write_code(sleeper.pid, ())


async def test_a_clock_that_says_it_did_not_move_is_no_effect(victim: Victim) -> None:
    with pytest.raises(NoEffect, match="says that its clock is 0 s ahead"):
        await Fault("clock", "victim", lasting_s=0.01).strike(OneProcess(victim.process.pid), asyncio.Event())


async def test_bits_of_rings_are_flipped_and_the_receiver_must_say_so(victim: Victim) -> None:
    received, sent = sorted(victim.folder.glob("*.ring"))
    refused = iter([3.0, 8.0, 8.0, 8.0])
    place = OneProcess(victim.process.pid, lambda: next(refused))
    proof = await Fault("corrupt", "victim", lasting_s=0.05).strike(place, asyncio.Event())
    assert proof["frames_refused"] == 5
    assert proof["bits_flipped"] > 0
    assert any(received.read_bytes())
    assert not any(sent.read_bytes()), "its peer receives by that one"
    with pytest.raises(NoEffect, match="no damaged frame"):
        await Fault("corrupt", "victim", lasting_s=0.05).strike(place, asyncio.Event())


async def test_bits_of_the_host_tier_are_flipped_while_the_fault_lasts_and_the_worker_must_say_so(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_tier, "PAUSE_S", 0.001)
    counts = iter([1.0, 1.0, 3.0, 3.0, 3.0])
    place, seen, again = OneProcess(victim.process.pid, counts.__next__), list[bytes](), asyncio.Event()

    class Look(asyncio.Event):
        def set(self) -> None:
            seen.append(victim.tier())
            if len(seen) == 1:
                victim.write_tier(1 << 16, NEW)
            if len(seen) == 3:
                again.set()

    strike = asyncio.ensure_future(Fault("corrupt-tier", "victim", lasting_s=600).strike(place, Look()))
    await asyncio.wait_for(again.wait(), LIMIT_S)
    await cancelled(strike)
    for content in seen:
        assert [content[at] for at in (0, 2 << 16, 3 << 16)] == [1, 4, 0], "once each, and none where nothing ever was"
    assert [content[1 << 16] for content in seen] == [2, NEW[0] ^ 2, NEW[0] ^ 2]
    assert victim.tier().rstrip(b"\0") == bytes(1 << 16) + NEW, "all is healed"
    fault = Fault("corrupt-tier", "victim", lasting_s=0)
    assert (await fault.strike(place, asyncio.Event()))["damaged_blocks"] == 2
    with pytest.raises(NoEffect, match="loaded no damaged block"):
        await fault.strike(place, asyncio.Event())


async def test_a_count_that_rises_proves_no_damage_where_no_bit_was_flipped(sleeper: subprocess.Popen[bytes]) -> None:
    refused = iter([3.0, 8.0])
    place = OneProcess(sleeper.pid, lambda: next(refused))
    with pytest.raises(NoEffect, match="no bit was flipped"):
        await Fault("corrupt", "sleeper", lasting_s=0.01).strike(place, asyncio.Event())
