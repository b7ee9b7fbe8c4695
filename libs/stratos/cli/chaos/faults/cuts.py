"""Faults of the network between processes: connections are cut, or nothing arrives any more."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stratos.cli.chaos.faults.contract import NoEffect, Proof, Strike
from stratos.cli.chaos.faults.sockets import (
    ESTABLISHED,
    LISTEN,
    TcpSocket,
    bytes_received,
    cut,
    descriptors,
    drop_all,
    owners,
    take,
    tcp_sockets,
)
from stratos.cli.chaos.faults.waking import undone_in_the_end

LOOK_S = 0.01
"""A connection that is made during a partition passes data for so long at most, on an idle machine."""
KNOCK_S = 30.0
"""Most time in which a port lets in, where nothing is in the way."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Where this machine reaches what listens at every address."""
IsMeant = Callable[[TcpSocket], bool]
"""Whether a socket of the process is to be cut off."""
_LET_THROUGH = """
for fd in held:
    try:
        socket.socket(fileno=fd).setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER
    except FileNotFoundError:  # it has none
        pass
"""


async def reset(strike: Strike) -> Proof:
    """Cut every connection of a process, once."""
    pid, inodes = (await strike.process()).pid, list[int]()
    table = tcp_sockets()
    for inode, fd in descriptors(pid).items():
        if inode in table and table[inode].state == ESTABLISHED and (sock := take(pid, fd, inode)):
            with sock:
                cut(sock)
                inodes.append(inode)
    if not inodes:
        raise NoEffect(f"process {pid} has no connection")
    strike.in_effect.set()
    table = tcp_sockets()
    if left := [inode for inode in inodes if inode in table and table[inode].state == ESTABLISHED]:
        raise NoEffect(f"{len(left)} of {len(inodes)} connections of process {pid} were not cut")
    return {"pid": pid, "connections_cut": len(inodes)}


async def partition(strike: Strike) -> Proof:
    """No packet reaches a process, nor anything that it has sent its peers; then all goes on.

    A port that it shares with others stays open: gateways have their clients from one.
    """
    pid = (await strike.process()).pid
    shared = _shared_ports(pid)
    return await _apart(strike, pid, lambda one: one.local_port not in shared)


async def cut_redis(strike: Strike) -> Proof:
    """The same between a process and Redis alone."""
    pid, ports = (await strike.process()).pid, await _ports_of_redis(strike)
    return await _apart(strike, pid, lambda one: one.remote_port in ports)


async def cut_workers(strike: Strike) -> Proof:
    """The same between a process and all that it called, without Redis: to a gateway those are routers and workers."""
    pid, ports = (await strike.process()).pid, await _ports_of_redis(strike)
    own = {port for _, port in _listens_at(pid)}
    return await _apart(
        strike, pid, lambda one: one.state != LISTEN and one.local_port not in own and one.remote_port not in ports
    )


async def _ports_of_redis(strike: Strike) -> set[int]:
    return {port for _, port in _listens_at(await strike.place.pid_of("redis"))}


async def _apart(strike: Strike, pid: int, is_meant: IsMeant) -> Proof:
    doors = [place for place in _listens_at(pid, is_meant) if await _is_let_in(*place, KNOCK_S)]
    by_hand = f"connections of process {pid} may still drop what arrives; start it again"
    with undone_in_the_end(_LET_THROUGH, by_hand=by_hand) as hold:
        wall = _Wall(pid, hold, is_meant)
        try:
            return await _hold_apart(strike, wall, doors)
        finally:
            wall.close()


async def _hold_apart(strike: Strike, wall: _Wall, doors: Sequence[tuple[str, int]]) -> Proof:
    loop = asyncio.get_running_loop()
    wall.extend()
    if not wall.own:
        raise NoEffect(f"process {wall.pid} has no connection to cut, and listens for none")
    num_before = len(wall.own)
    strike.in_effect.set()
    knocks = [asyncio.ensure_future(_is_let_in(*place, strike.lasting_s)) for place in doors]
    until_s = loop.time() + strike.lasting_s
    while loop.time() < until_s:
        await asyncio.sleep(LOOK_S)
        if wall.has_ended():  # its port must be free for the next one
            raise NoEffect(f"process {wall.pid} ended during the partition")
        wall.extend()
    if num_bytes := wall.num_bytes_passed():
        raise NoEffect(f"{num_bytes} bytes reached process {wall.pid}, or its peers, across the partition")
    if any(await asyncio.gather(*knocks)):
        raise NoEffect(f"process {wall.pid} took a new connection during the partition")
    return {
        "pid": wall.pid,
        "apart_s": strike.lasting_s,
        "sockets": num_before,
        "new_sockets": len(wall.own) - num_before,
        "bytes_passed": 0,
        "refused_at_ports": len(knocks),
        "peers_out_of_reach": wall.num_strangers,
    }


def _shared_ports(pid: int) -> set[int]:
    """Ports at which other processes take connections from the same queue."""
    table = tcp_sockets()
    own = {inode for inode in descriptors(pid) if inode in table and table[inode].state == LISTEN}
    return {table[inode].local_port for inode in own & owners(own, besides=pid).keys()}


def _listens_at(pid: int, is_meant: IsMeant = lambda _: True) -> list[tuple[str, int]]:
    """Hosts and ports at which a process takes connections."""
    table, names = tcp_sockets(), set[tuple[str, int]]()
    for inode, fd in descriptors(pid).items():
        one = table.get(inode)
        if one and one.state == LISTEN and is_meant(one) and (sock := take(pid, fd, inode)):
            with sock:
                names.add(sock.getsockname()[:2])
    return [(_LOOPBACK.get(host, host), port) for host, port in sorted(names)]


async def _is_let_in(host: str, port: int, wait_s: float) -> bool:
    """Whether a connection is made within the time; its own first packet is thrown away with those of others."""
    try:
        async with asyncio.timeout(wait_s):
            _, writer = await asyncio.open_connection(host, port)
    except (TimeoutError, OSError):
        return False
    writer.close()
    return True


@dataclass
class _Wall:
    """Sockets that nothing reaches.

    Args:
        pid: process behind it.
        hold: gives a descriptor to the child that lets packets pass in the end.
        is_meant: sockets of the process that it stands before.
    """

    pid: int
    hold: Callable[[int], None]
    is_meant: IsMeant
    own: dict[int, socket.socket] = field(default_factory=dict)
    """Sockets of the process by inode."""
    _peers: dict[int, socket.socket] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)
    _listening: set[int] = field(default_factory=set)
    _stranger: set[int] = field(default_factory=set)
    _pidfd: int = field(init=False)

    def __post_init__(self) -> None:
        self._pidfd = os.pidfd_open(self.pid)

    def has_ended(self) -> bool:
        """Whether the process has, though another may have its number."""
        return bool(select.select([self._pidfd], [], [], 0)[0])

    @property
    def num_strangers(self) -> int:
        """Peers that are other users' processes: what the process sends still reaches them."""
        return len(self._stranger)

    def extend(self) -> None:
        """Block what there is by now of the process, and of its peers."""
        table = tcp_sockets()
        for inode, fd in descriptors(self.pid).items():
            if inode in table and inode not in self.own and self.is_meant(table[inode]):
                self._block(self.own, self.pid, fd, inode)
                if table[inode].state == LISTEN:
                    self._listening.add(inode)
        ends = {(one.remote, one.local) for one in table.values() if one.inode in self.own}
        known = self.own.keys() | self._peers.keys() | self._stranger
        peers = {one.inode for one in table.values() if (one.local, one.remote) in ends} - known
        if peers:
            found = owners(peers)
            self._stranger |= peers - found.keys()
            for inode, (pid, fd) in found.items():
                if pid != os.getpid():
                    self._block(self._peers, pid, fd, inode)

    def _block(self, sockets: dict[int, socket.socket], pid: int, fd: int, inode: int) -> None:
        if (sock := take(pid, fd, inode)) is None:
            return
        sockets[inode] = sock
        self.hold(sock.fileno())
        drop_all(sock)
        self._before[inode] = bytes_received(sock)

    def num_bytes_passed(self) -> int:
        """Bytes that arrived at any blocked socket."""
        sockets = {**self.own, **self._peers}
        return sum(
            bytes_received(sock) - self._before[inode]
            for inode, sock in sockets.items()
            if inode not in self._listening
        )

    def close(self) -> None:
        os.close(self._pidfd)
        for sock in (*self.own.values(), *self._peers.values()):
            sock.close()
