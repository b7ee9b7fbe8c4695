"""Faults of connections, memory and files, aimed at a process of the test's own that does what it is told."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratos.cli.chaos.faults import clock, contract, cuts, shortages
from stratos.cli.chaos.faults.contract import NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import FAULTS, Fault
from stratos.cli.chaos.faults.sockets import tcp_sockets
from stratos.cli.chaos.faults.waking import undone_in_the_end
from tests.support.chaos.places import OneProcess

VICTIM = """
import fcntl, mmap, os, socket, sys, time

def serve():
    import http.server, threading
    class Quiet(http.server.ThreadingHTTPServer):
        daemon_threads = True
        def handle_error(self, *_):
            pass
    server = Quiet(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port

server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
received, sent = (os.open(path, os.O_RDWR) for path in sys.argv[2:])
fcntl.flock(received, fcntl.LOCK_EX)
print("accepted", flush=True)
kept = []
for line in sys.stdin:
    word = line.strip()
    try:
        if word == "echo":
            connection.sendall(connection.recv(100))
        elif word == "write":
            with open(sys.argv[1], "a") as file:
                file.write("text")
        elif word == "allocate":
            kept.append(mmap.mmap(-1, 1 << 26))
        elif word == "start":
            print(os.posix_spawnp("sleep", ["sleep", "600"], os.environ), flush=True)
            continue
        elif word == "serve":
            print(serve(), flush=True)
            continue
        elif word == "clock":
            print(time.time(), flush=True)
            continue
        print("done", flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"""
EFBIG, ENOMEM = 27, 12
OFFSET_S = time.time() - time.monotonic()


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
    rings = [tmp_path / f"kv-{digit * 32}.ring" for digit in "01"]
    for ring in rings:
        ring.write_bytes(bytes(65536))
    argv = [sys.executable, "-I", "-S", "-c", VICTIM, str(tmp_path / "file"), *map(str, rings)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                assert process.stdout.readline() == "accepted\n"
                yield Victim(process, connection, tmp_path)
        finally:
            process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
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


async def effect_of(strike: asyncio.Task[dict[str, object]], in_effect: asyncio.Event) -> None:
    """Wait for it; raises what the strike raises."""
    seen = asyncio.ensure_future(in_effect.wait())
    await asyncio.wait({strike, seen}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    seen.cancel()
    assert in_effect.is_set(), strike


async def cancelled(strike: asyncio.Task[dict[str, object]]) -> asyncio.CancelledError:
    strike.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await strike
    return raised.value


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
        await effect_of(strike, in_effect)
        victim.tell("echo")
        victim.connection.sendall(b"late")
        with pytest.raises(TimeoutError):
            socket.create_connection(host, timeout=0.1)
        assert not strike.done()
        proof = await strike
    assert (proof["bytes_passed"], proof["sockets"], proof["refused_at_ports"]) == (0, 2, 1)
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
    asyncio.ensure_future(in_effect.wait()).add_done_callback(lambda _: print("apart", flush=True))
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


async def test_a_process_that_ends_during_its_partition_leaves_its_port_free(victim: Victim) -> None:
    host = victim.connection.getpeername()
    with begun(Fault("partition", "victim", lasting_s=600), OneProcess(victim.process.pid)) as (strike, in_effect):
        await effect_of(strike, in_effect)
        victim.process.kill()
        with pytest.raises(NoEffect, match="ended during the partition"):
            await asyncio.wait_for(strike, 60)
    victim.process.wait(60)
    socket.create_server(host).close()


def test_both_ends_of_a_connection_are_known_where_one_takes_both_families() -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=60) as client,
        server.accept()[0] as accepted,
    ):
        near, far = (tcp_sockets()[os.fstat(sock.fileno()).st_ino] for sock in (client, accepted))
        assert (near.local, near.remote) == (far.remote, far.local)


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


async def test_a_count_that_rises_proves_no_damage_where_no_bit_was_flipped(sleeper: subprocess.Popen[bytes]) -> None:
    refused = iter([3.0, 8.0])
    place = OneProcess(sleeper.pid, lambda: next(refused))
    with pytest.raises(NoEffect, match="no bit was flipped"):
        await Fault("corrupt", "sleeper", lasting_s=0.01).strike(place, asyncio.Event())


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
    proof = await Fault("memory", "victim", lasting_s=0.01).strike(place, asyncio.Event())
    assert proof["threads_refused"] > 0
    monkeypatch.setattr(shortages, "SPARE_BYTES", 1 << 40)
    with pytest.raises(NoEffect, match="had memory for 24 more threads"):
        await Fault("memory", "victim", lasting_s=0.01).strike(place, asyncio.Event())


async def test_a_clock_goes_ahead_for_one_process_and_comes_back(victim: Victim) -> None:
    class Place(OneProcess):
        async def clock_ahead_s(self, name: str) -> float:
            victim.tell("clock")
            return float(await victim.answer()) - time.time()

    place, fault = Place(victim.process.pid), Fault("clock", "victim", lasting_s=600)
    with begun(fault, place) as (strike, in_effect):
        await effect_of(strike, in_effect)
        assert abs(time.time() - time.monotonic() - OFFSET_S) < 60, "that of others stays"
        with pytest.raises(NoEffect, match="ahead already"):
            await fault.strike(place, asyncio.Event())
        await cancelled(strike)
    assert abs(await place.clock_ahead_s("victim")) < 60
    proof = await Fault("clock", "victim", lasting_s=0.01).strike(place, asyncio.Event())
    assert abs(proof["ahead_s"] - clock.STEP_S) < 60


async def test_a_clock_that_says_it_did_not_move_is_no_effect(victim: Victim) -> None:
    with pytest.raises(NoEffect, match="says that its clock is 0 s ahead"):
        await Fault("clock", "victim", lasting_s=0.01).strike(OneProcess(victim.process.pid), asyncio.Event())


async def test_a_drain_is_believed_only_where_the_process_has_ended(victim: Victim) -> None:
    with pytest.raises(NoEffect, match="has not left"):
        await Fault("drain", "victim").strike(OneProcess(victim.process.pid), asyncio.Event())


async def test_the_object_store_is_away_and_comes_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "base").mkdir(parents=True)
    (store / "base" / "weights").write_text("w")
    with begun(Fault("gone", "object-store", lasting_s=0.2), OneProcess(0, store=store)) as (strike, in_effect):
        await effect_of(strike, in_effect)
        with pytest.raises(NotADirectoryError):
            (store / "base" / "weights").read_text()
        assert (await strike)["objects"] == 2
    assert (store / "base" / "weights").read_text() == "w"
    assert not store.with_name("store.away").exists()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_object_store_that_cannot_come_back_is_named(
    tmp_path: Path, is_cancelled: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    (store / "base").mkdir(parents=True)
    lasting_s = 600 if is_cancelled else 0.01
    with begun(Fault("gone", "object-store", lasting_s=lasting_s), OneProcess(0, store=store)) as (strike, in_effect):
        await effect_of(strike, in_effect)
        store.unlink()
        (store / "new").mkdir(parents=True)
        by_hand = f"lies in {store}.away; move it back"
        if is_cancelled:
            assert by_hand in " ".join((await cancelled(strike)).__notes__)
        else:
            with pytest.raises(NoEffect, match=by_hand):
                await strike
    assert by_hand in capfd.readouterr().err


REAL_PRLIMIT = resource.prlimit
CHECKED = {
    "kill": (os, "kill", lambda *_: None, "alive after SIGKILL"),
    "stop": (os, "kill", lambda *_: None, "runs after SIGSTOP"),
    "slow": (os, "kill", lambda *_: None, "runs after SIGSTOP"),
    "reset": (cuts, "cut", lambda *_: None, "were not cut"),
    "partition": (cuts, "drop_all", lambda *_: None, "across the partition"),
    "full-disk": (resource, "prlimit", lambda pid, kind, *_: REAL_PRLIMIT(pid, kind), "did not live under its limit"),
    "memory": (resource, "prlimit", lambda pid, kind, *_: REAL_PRLIMIT(pid, kind), "did not live under its limit"),
    "clock": (clock, "write_code", lambda *_: None, "0 s ahead"),
    "gone": (Path, "rename", lambda *_: None, "there again"),
}


@pytest.mark.parametrize("kind", CHECKED)
async def test_the_check_refuses_a_fault_of_a_live_process_that_did_nothing(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Traffic(asyncio.Event):
        def set(self) -> None:
            super().set()
            victim.connection.sendall(b"passes")

    monkeypatch.setattr(contract, "EFFECT_TIMEOUT_S", 0.1)
    module, name, nothing, match = CHECKED[kind]
    place, fault = OneProcess(victim.process.pid, store=victim.folder), Fault(kind, "victim", lasting_s=0.05)
    with monkeypatch.context() as patched:
        patched.setattr(module, name, nothing)
        with pytest.raises(NoEffect, match=match):
            await fault.strike(place, Traffic())


async def test_a_partition_that_did_nothing_is_seen_where_nobody_sends(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "drop_all", lambda _: None)
    with pytest.raises(NoEffect, match="took a new connection"):
        await Fault("partition", "victim", lasting_s=0.3).strike(OneProcess(victim.process.pid), asyncio.Event())


@pytest.mark.parametrize("kind", sorted(FAULTS))
async def test_a_fault_aimed_at_nothing_has_no_effect(kind: str) -> None:
    with pytest.raises(NoEffect, match="there is no"):
        await Fault(kind, NOTHING).strike(OneProcess(os.getpid()), asyncio.Event())


def test_what_cannot_be_undone_is_said() -> None:
    with pytest.raises(OSError, match="undone: go home"), undone_in_the_end("sys.exit(3)", by_hand="go home"):
        pass
