"""Faults of connections, memory and files, aimed at a process of the test's own that does what it is told."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratos.cli.chaos.faults.contract import NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import FAULTS, Fault
from stratos.cli.chaos.faults.waking import undone_in_the_end
from tests.support.chaos.places import OneProcess

VICTIM = """
import mmap, os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
ring = os.open(sys.argv[1], os.O_RDWR)
kept = []
for line in sys.stdin:
    word = line.strip()
    try:
        if word == "echo":
            connection.sendall(connection.recv(100))
        elif word == "write":
            with open(sys.argv[2], "a") as file:
                file.write("text")
        elif word == "allocate":
            kept.append(mmap.mmap(-1, 1 << 26))
        print("done", flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"""
EFBIG, ENOMEM = 27, 12


class Victim:
    """The process, and a connection to it."""

    def __init__(self, process: subprocess.Popen[str], connection: socket.socket, folder: Path) -> None:
        self.process, self.connection, self.folder = process, connection, folder

    def tell(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    async def answer(self) -> str:
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    ring = tmp_path / f"kv-{'0' * 32}.ring"
    ring.write_bytes(bytes(65536))
    argv = [sys.executable, "-I", "-S", "-c", VICTIM, str(ring), str(tmp_path / "file")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                yield Victim(process, connection, tmp_path)
        finally:
            process.kill()


@contextmanager
def begun(fault: Fault, place: OneProcess) -> Iterator[tuple[asyncio.Task[dict[str, object]], asyncio.Event]]:
    in_effect = asyncio.Event()
    strike = asyncio.ensure_future(fault.strike(place, in_effect))
    try:
        yield strike, in_effect
    finally:
        strike.cancel()


async def test_connections_are_cut(victim: Victim) -> None:
    victim.tell("echo")
    victim.connection.sendall(b"a")
    assert await asyncio.to_thread(victim.connection.recv, 9) == b"a"
    proof = await Fault("reset", "victim").strike(OneProcess(victim.process.pid), asyncio.Event())
    assert proof["connections_cut"] == 1
    with pytest.raises(ConnectionResetError):
        victim.connection.recv(9)
    with pytest.raises(NoEffect, match="no connection"):  # that of before is cut already
        await Fault("reset", "victim").strike(OneProcess(victim.process.pid), asyncio.Event())


async def test_nothing_arrives_across_a_partition_and_everything_after_it(victim: Victim) -> None:
    host = victim.connection.getpeername()
    with begun(Fault("partition", "victim", lasting_s=0.6), OneProcess(victim.process.pid)) as (strike, in_effect):
        await asyncio.wait_for(in_effect.wait(), 60)
        victim.tell("echo")
        victim.connection.sendall(b"late")
        with pytest.raises(TimeoutError):
            socket.create_connection(host, timeout=0.1)
        assert not strike.done()
        proof = await strike
    assert (proof["bytes_passed"], proof["sockets"]) == (0, 2)
    assert await asyncio.to_thread(victim.connection.recv, 9) == b"late"


MAKER = """
import asyncio, sys
from stratos.cli.chaos.faults.fault import Fault
from tests.support.chaos.places import OneProcess

async def make():
    in_effect = asyncio.Event()
    strike = asyncio.ensure_future(
        Fault("partition", "victim", lasting_s=600).strike(OneProcess(int(sys.argv[1])), in_effect)
    )
    await in_effect.wait()
    print("apart", flush=True)
    await strike

asyncio.run(make())
"""


async def test_a_partition_is_over_when_its_maker_is_killed(victim: Victim) -> None:
    argv = [sys.executable, "-c", MAKER, str(victim.process.pid)]
    maker = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    try:
        assert await maker.stdout.readline() == b"apart\n"
        with pytest.raises(TimeoutError):
            socket.create_connection(victim.connection.getpeername(), timeout=0.1)
        victim.tell("echo")
        victim.connection.sendall(b"late")
        maker.kill()
        assert await asyncio.to_thread(victim.connection.recv, 9) == b"late"
    finally:
        if maker.returncode is None:
            maker.kill()
        await maker.wait()


async def test_bits_of_rings_are_flipped_and_the_receiver_must_say_so(victim: Victim) -> None:
    ring = next(victim.folder.glob("*.ring"))
    refused = iter([3.0, 8.0, 8.0, 8.0])
    place = OneProcess(victim.process.pid, lambda: next(refused))
    proof = await Fault("corrupt", "victim", lasting_s=0.05).strike(place, asyncio.Event())
    assert proof["frames_refused"] == 5
    assert proof["bits_flipped"] > 0
    assert any(ring.read_bytes())
    with pytest.raises(NoEffect, match="no damaged frame"):
        await Fault("corrupt", "victim", lasting_s=0.05).strike(place, asyncio.Event())


async def test_files_do_not_grow_on_a_full_disk(victim: Victim) -> None:
    with begun(Fault("full-disk", "victim", lasting_s=0.5), OneProcess(victim.process.pid)) as (strike, in_effect):
        await asyncio.wait_for(in_effect.wait(), 60)
        victim.tell("write")
        assert await victim.answer() == f"OSError {EFBIG}"
        await strike
    victim.tell("write")
    assert await victim.answer() == "done"


async def test_nothing_more_is_mapped_without_memory(victim: Victim) -> None:
    with begun(Fault("memory", "victim", lasting_s=0.5), OneProcess(victim.process.pid)) as (strike, in_effect):
        await asyncio.wait_for(in_effect.wait(), 60)
        victim.tell("allocate")
        assert await victim.answer() == f"OSError {ENOMEM}"
        await strike
    victim.tell("allocate")
    assert await victim.answer() == "done"


async def test_a_drain_is_believed_only_where_the_process_has_ended(victim: Victim) -> None:
    with pytest.raises(NoEffect, match="has not left"):
        await Fault("drain", "victim").strike(OneProcess(victim.process.pid), asyncio.Event())


async def test_the_object_store_is_away_and_comes_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "base").mkdir(parents=True)
    (store / "base" / "weights").write_text("w")
    with begun(Fault("gone", "object-store", lasting_s=0.2), OneProcess(0, store=store)) as (strike, in_effect):
        await asyncio.wait_for(in_effect.wait(), 60)
        with pytest.raises(NotADirectoryError):
            (store / "base" / "weights").read_text()
        assert (await strike)["objects"] == 2
    assert (store / "base" / "weights").read_text() == "w"
    assert not store.with_name("store.away").exists()


@pytest.mark.parametrize("kind", sorted(FAULTS))
async def test_a_fault_aimed_at_nothing_has_no_effect(kind: str) -> None:
    with pytest.raises(NoEffect, match="there is no"):
        await Fault(kind, NOTHING).strike(OneProcess(os.getpid()), asyncio.Event())


def test_what_cannot_be_undone_is_said() -> None:
    with pytest.raises(OSError, match="could not be undone"), undone_in_the_end("sys.exit(3)"):
        pass
