"""How the two processes of a pair find each other: a store that the receiver hosts, and the sender's hello in it.

Each pair has a store and a process group of its own (never ``init_process_group``: one failure must not reach another
pair).  The offer's address is the store's; nothing listens on another address than ``host``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from stratos.common.errors import Overloaded, WorkerLost
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.transfer import TransportOffer

RECEIVER_RANK = 0
SENDER_RANK = 1
_HELLO = "sender-is-here"
_POLL_S = (0.001, 0.02)
"""Shortest and longest pause between looks for the sender's hello."""
Join = Callable[[Any, str, int], Any]
"""Store, pair and rank -> the process group; blocks until both sides are there."""


class GroupConfig(Protocol):
    """Where to listen, and how long to wait."""

    @property
    def host(self) -> str: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def timeout(self) -> timedelta: ...


class HostedStore:
    """The receiver's end.

    Raises:
        Overloaded: the address cannot be listened on.
    """

    def __init__(self, config: GroupConfig) -> None:
        # Without a socket of ours the store would listen on every address of the machine.
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        try:
            listener = socket.create_server((config.host, 0), family=family)
        except OSError as err:
            raise Overloaded(f"cannot listen on {config.host} for KV transfers: {err.strerror or err}") from err
        self._config = config
        self.port: int = listener.getsockname()[1]
        self.address = f"{config.host}:{self.port}"
        self._store: Any = _store(config, config.host, self.port, is_master=True, master_listen_fd=listener.detach())

    def close(self) -> None:
        """No peer can join any more."""
        self._store = None

    async def join(self, pair: str, join: Join, threads: BlockingThreads) -> Any:
        """The group, once the sender is there.

        Raises:
            RuntimeError: joining failed.
            TimeoutError: the sender did not come in time.
        """
        async with asyncio.timeout(self._config.timeout_s):
            await self._hello()
        return await threads.submit(join, self._store, pair, RECEIVER_RANK)

    async def _hello(self) -> None:
        # Joining blocks a thread that nothing can wake: look first whether there is a peer to join.
        pause_s, longest_s = _POLL_S
        while not self._store.check([_HELLO]):
            await asyncio.sleep(pause_s)
            pause_s = min(longest_s, pause_s * 1.5)


def peer_of(rank: int) -> int:
    """The other one of the two."""
    return SENDER_RANK if rank == RECEIVER_RANK else RECEIVER_RANK


async def join_as_sender(offer: TransportOffer, config: GroupConfig, join: Join, threads: BlockingThreads) -> Any:
    """Say hello to the receiver of an offer and join it.

    Raises:
        ValueError: the offer's address is not host:port; the threads are closed then.
        WorkerLost: nothing is there; likewise.
    """
    try:
        return await _enter(offer, config, join, threads)
    except (ValueError, WorkerLost):
        threads.close()
        raise


async def _enter(offer: TransportOffer, config: GroupConfig, join: Join, threads: BlockingThreads) -> Any:
    host, _, port = offer.address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{offer.address!r} is not host:port")
    await _probe(host, int(port), config.timeout_s)

    def enter() -> Any:
        store = _store(config, host, int(port), is_master=False)
        store.set(_HELLO, "")
        return join(store, offer.pair, SENDER_RANK)

    try:
        return await threads.submit(enter)
    except (RuntimeError, OSError) as err:  # OSError: the library of the group is not there
        raise WorkerLost(f"could not join the KV transfer pair {offer.pair} at {offer.address}: {err}") from err


def _store(config: GroupConfig, host: str, port: int, **options: Any) -> Any:
    distributed: Any = importlib.import_module("torch.distributed")
    return distributed.TCPStore(host, port, timeout=config.timeout, wait_for_workers=False, **options)


async def _probe(host: str, port: int, timeout_s: float) -> None:
    """Ask whether a process listens; torch retries a refused connection for the whole timeout, with stack traces."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as err:
        raise WorkerLost(f"no process listens at {host}:{port}: {str(err) or 'timed out'}") from err
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
