"""The KV transports of one worker, made on first use: a worker that never meets Gloo imports no torch for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratos.common.errors import IdentityMismatch
from stratos.core.kv import StagingLedger
from stratos.kv.capabilities import NOTHING_SHARED, LocalCapabilities
from stratos.kv.transfer import Receiver, Sender

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFactory:
    """How to make both ends of one transport."""

    receiver: Callable[[], Receiver]
    sender: Callable[[], Sender]


class Transports:
    """Receivers and senders by name. Belongs to the event loop."""

    def __init__(
        self, factories: Mapping[str, TransportFactory], capabilities: LocalCapabilities = NOTHING_SHARED
    ) -> None:
        self._factories = dict(factories)
        self.capabilities = capabilities
        """What this process can reach."""
        self._left_out: set[tuple[str, str]] = set()
        """Transports that do not work here, each with the device they do not reach; "" for all."""
        self._receivers: dict[str, Receiver] = {}
        self._senders: dict[str, Sender] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Transports this worker speaks, best first."""
        return self.names_for("")

    def names_for(self, device: str) -> tuple[str, ...]:
        """Those for a peer that computes on ``device``; all of them where none is left that works."""
        found = (name for name in self._factories if not self._left_out & {(name, ""), (name, device)})
        return tuple(found) or tuple(self._factories)

    def leave_out(self, name: str, why: str, device: str = "") -> None:
        """A transport has shown that it does not work here: speak it no more, to peers on ``device`` or at all."""
        if (name, device) not in self._left_out:
            _log.error("no more KV over %s%s: %s", name, f" with device {device}" if device else "", why)
            self._left_out.add((name, device))

    def receiver(self, name: str) -> Receiver:
        """The receiving end of a transport. Raises ``IdentityMismatch`` for one this worker does not speak."""
        self._expect(name)
        if name not in self._receivers:
            self._receivers[name] = self._factories[name].receiver()
        return self._receivers[name]

    def sender(self, name: str) -> Sender:
        """The sending end of a transport. Raises ``IdentityMismatch`` for one this worker does not speak."""
        self._expect(name)
        if name not in self._senders:
            self._senders[name] = self._factories[name].sender()
        return self._senders[name]

    def end_incarnation(self, source_incarnation: str) -> None:
        """Drop the staging slots of a source in every transport."""
        for receiver in self._receivers.values():
            receiver.end_incarnation(source_incarnation)

    def ledger(self) -> StagingLedger:
        """Staging slots of all transports, law checked."""
        return sum((receiver.ledger() for receiver in self._receivers.values()), StagingLedger())

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()
        for receiver in self._receivers.values():
            await receiver.close()

    def _expect(self, name: str) -> None:
        if name not in self._factories:
            raise IdentityMismatch(
                f"this worker does not speak the KV transport {name!r}, only {', '.join(self.names)}"
            )
