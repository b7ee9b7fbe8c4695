"""The KV transports of one worker: control here, memory and connections at the data port of its engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from stratos.common.errors import IdentityMismatch, WorkerLost
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.capabilities import NOTHING_SHARED, LocalCapabilities
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.port.sending import PortSender
from stratos.kv_transfer.registry import staging_for
from stratos.kv_transfer.settings import TransportConfig

_log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 5.0
PREPARE_TIMEOUT_S = 30.0
"""An import of torch on a busy machine."""


class Transports:
    """Staging slots and senders by transport, made on first use. Belongs to the event loop.

    Args:
        names: of the transports, best first.
        port: has their memory and connections.
        incarnation: of this process.
        config: of all transports.
        capabilities: what this process can reach.
    """

    def __init__(
        self,
        names: Iterable[str],
        port: DataPort,
        incarnation: str,
        config: TransportConfig,
        capabilities: LocalCapabilities = NOTHING_SHARED,
    ) -> None:
        self._names = tuple(names)
        self.port = port
        self.capabilities = capabilities
        self._incarnation, self._config = incarnation, config
        self._left_out: set[tuple[str, str]] = set()
        """Transports that do not work here, each with the device they do not reach; "" for all."""
        self._prepared: set[str] = set()
        self._staging: dict[str, StagingSlots] = {}
        self._senders: dict[str, PortSender] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Transports this worker speaks, best first."""
        return self.names_for("")

    def names_for(self, device: str) -> tuple[str, ...]:
        """Transports for a peer that computes on ``device``; all of them where none is left that works."""
        found = (name for name in self._names if not self._left_out & {(name, ""), (name, device)})
        return tuple(found) or self._names

    def leave_out(self, name: str, why: str, device: str = "") -> None:
        """A transport has shown that it does not work here: speak it no more, to peers on ``device`` or at all."""
        if (name, device) not in self._left_out:
            _log.error("no more KV over %s%s: %s", name, f" with device {device}" if device else "", why)
            self._left_out.add((name, device))

    async def prepare(self, name: str) -> None:
        """Have the port make both ends before their first use, whose deadlines are not for that.

        Raises:
            WorkerLost: the engine does not answer.
        """
        if name in self._prepared:
            return
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                await self.port.prepare(name)
        except TimeoutError:
            raise WorkerLost("the engine of this worker does not answer") from None
        self._prepared.add(name)

    def staging(self, name: str) -> StagingSlots:
        """The receiving end of a transport, also of one that was left out: a leg may have begun before that.

        Raises ``IdentityMismatch`` for one this worker does not speak.
        """
        self._expect(name)
        if name not in self._staging:
            config = staging_for(name, self._config)
            self._staging[name] = StagingSlots(name, self._incarnation, config, self.port)
        return self._staging[name]

    def sender(self, name: str) -> PortSender:
        """The sending end of a transport. Raises as ``staging``."""
        self._expect(name)
        if name not in self._senders:
            self._senders[name] = PortSender(name, self.port)
        return self._senders[name]

    def end_incarnation(self, source_incarnation: str) -> None:
        """Drop the staging slots of a source in every transport."""
        for staging in self._staging.values():
            staging.end_incarnation(source_incarnation)

    def end_idle(self) -> None:
        """End the pairs that no hand-off has had since the last call, at their senders some calls later."""
        for staging in self._staging.values():
            staging.end_idle()
        for sender in self._senders.values():
            sender.end_idle()

    def ledger(self) -> StagingLedger:
        """Staging slots of all transports, law checked."""
        return sum((staging.ledger() for staging in self._staging.values()), StagingLedger())

    async def close(self) -> None:
        """End all pairs; the port itself is closed with its engine, also where that answers no call any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for sender in self._senders.values():
                    await sender.close()
                for staging in self._staging.values():
                    await staging.close()

    def _expect(self, name: str) -> None:
        if name not in self._names:
            raise IdentityMismatch(
                f"this worker does not speak the KV transport {name!r}, only {', '.join(self._names)}"
            )
