"""Faults of connections and files, and the check of each: aimed at a process of the test's own."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratos.cli.chaos.faults import clock, contract, cuts
from stratos.cli.chaos.faults.contract import NOTHING, NoEffect
from stratos.cli.chaos.faults.fault import FAULTS, Fault
from stratos.cli.chaos.faults.sockets import LISTEN, descriptors, take, tcp_sockets
from stratos.cli.chaos.faults.waking import undone_in_the_end
from tests.support.chaos.places import OneProcess
from tests.support.chaos.victim import Victim, begun, cancelled, effect_of, running_victim
from tests.support.waiting import LIMIT_S


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with running_victim(tmp_path) as running:
        yield running


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


@contextmanager
def called_by(victim: Victim) -> Iterator[socket.socket]:
    """A connection that the victim has made to this process: all that it has called."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        victim.tell(f"call {server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection:
            yield connection


@pytest.mark.parametrize(("kind", "is_redis"), [("cut-redis", True), ("cut-workers", False)])
async def test_one_kind_of_peer_is_cut_off_and_no_other(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, kind: str, is_redis: bool
) -> None:
    """This process is the victim's Redis or not."""
    pid, own = victim.process.pid, os.getpid()
    place, other = (OneProcess(pid, redis=own if is_own else pid) for is_own in (is_redis, not is_redis))
    with called_by(victim) as connection:
        assert await victim.answer() == "done"
        with begun(Fault(kind, "client", lasting_s=0.6), place) as (strike, in_effect):
            await effect_of(strike, in_effect)
            victim.tell("echo")
            connection.sendall(b"late")
            assert (await strike)["bytes_passed"] == 0
        assert await asyncio.to_thread(connection.recv, 9) == b"late"
        with pytest.raises(NoEffect, match="no connection to cut"):
            await Fault(kind, "client", lasting_s=0.1).strike(other, asyncio.Event())
        monkeypatch.setattr(cuts, "drop_all", lambda *_: None)
        with begun(Fault(kind, "client", lasting_s=0.3), place) as (strike, in_effect):
            await effect_of(strike, in_effect)
            victim.tell("echo")
            connection.sendall(b"passes")
            with pytest.raises(NoEffect, match="across the partition"):
                await strike


async def test_a_port_that_others_share_stays_open(victim: Victim) -> None:
    """The connection was taken at it, too, so nothing is left to cut."""
    table = tcp_sockets()
    [inode] = [one for one in descriptors(victim.process.pid) if one in table and table[one].state == LISTEN]
    held = take(victim.process.pid, descriptors(victim.process.pid)[inode], inode)
    with held, pytest.raises(NoEffect, match="no connection to cut"):
        await Fault("partition", "victim", lasting_s=0.1).strike(OneProcess(victim.process.pid), asyncio.Event())


async def test_a_gateway_leaves_by_a_signal(victim: Victim) -> None:
    proof = await Fault("drain", "gateway-0").strike(OneProcess(victim.process.pid), asyncio.Event())
    assert proof["pid"] == victim.process.pid
    assert victim.process.wait(60)


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
            await asyncio.wait_for(strike, LIMIT_S)
    victim.process.wait(60)
    socket.create_server(host).close()


def test_both_ends_of_a_connection_are_known_where_one_takes_both_families() -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=LIMIT_S) as client,
        server.accept()[0] as accepted,
    ):
        near, far = (tcp_sockets()[os.fstat(sock.fileno()).st_ino] for sock in (client, accepted))
        assert (near.local, near.remote) == (far.remote, far.local)


async def test_a_port_that_let_nobody_in_before_proves_no_partition(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise OSError("a firewall")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    proof = await Fault("partition", "victim", lasting_s=0.01).strike(OneProcess(victim.process.pid), asyncio.Event())
    assert proof["refused_at_ports"] == 0


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
