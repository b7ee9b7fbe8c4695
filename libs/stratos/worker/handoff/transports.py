"""The KV transports of one worker: control here, memory and connections at the data port of its engine."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.common.errors import IdentityMismatch
from stratos.core.kv import StagingLedger
from stratos.kv.capabilities import NOTHING_SHARED, LocalCapabilities
from stratos.kv.port.base import DataPort
from stratos.kv.port.receiving import PortRings
from stratos.kv.port.sending import PortSender
from stratos.kv.receiver import RingReceiver
from stratos.kv.settings import StagingConfig
from stratos.kv.transfer import Receiver


class Transports:
    """Receivers and senders by name, made on first use. Belongs to the event loop.

    Args:
        names: of the transports, best first.
        port: has their memory and connections.
        incarnation: of this process.
        staging: size of the slots.
        capabilities: what this process can reach.
    """

    def __init__(
        self,
        names: Iterable[str],
        port: DataPort,
        incarnation: str,
        staging: StagingConfig,
        capabilities: LocalCapabilities = NOTHING_SHARED,
    ) -> None:
        self.names = tuple(names)
        """Transports this worker speaks, best first."""
        self.port = port
        self.capabilities = capabilities
        self._incarnation, self._staging = incarnation, staging
        self._receivers: dict[str, Receiver] = {}
        self._senders: dict[str, PortSender] = {}

    def receiver(self, name: str) -> Receiver:
        """The receiving end of a transport. Raises ``IdentityMismatch`` for one this worker does not speak."""
        self._expect(name)
        if name not in self._receivers:
            rings = PortRings(name, self.port)
            self._receivers[name] = RingReceiver(name, self._incarnation, self._staging, rings)
        return self._receivers[name]

    def sender(self, name: str) -> PortSender:
        """The sending end of a transport. Raises ``IdentityMismatch`` for one this worker does not speak."""
        self._expect(name)
        if name not in self._senders:
            self._senders[name] = PortSender(name, self.port)
        return self._senders[name]

    def end_incarnation(self, source_incarnation: str) -> None:
        """Drop the staging slots of a source in every transport."""
        for receiver in self._receivers.values():
            receiver.end_incarnation(source_incarnation)

    def ledger(self) -> StagingLedger:
        """Staging slots of all transports, law checked."""
        return sum((receiver.ledger() for receiver in self._receivers.values()), StagingLedger())

    async def close(self) -> None:
        """End all pairs; the port itself is closed with its engine."""
        for sender in self._senders.values():
            await sender.close()
        for receiver in self._receivers.values():
            await receiver.close()

    def _expect(self, name: str) -> None:
        if name not in self.names:
            raise IdentityMismatch(
                f"this worker does not speak the KV transport {name!r}, only {', '.join(self.names)}"
            )
