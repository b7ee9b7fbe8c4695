"""How a process dials its peers: plain text, or mTLS with its own certificate; every channel is made here.

Peers are dialled by addresses that no certificate can know (a pod's IP), so the caller expects the name of the peer's
*role* in its certificate.
"""

from __future__ import annotations

import grpc
import grpc.aio

from stratos.common.tls.files import TlsFiles, TlsMaterial
from stratos.common.tls.identity import ANY_WORKER, PeerRole, dns_name
from stratos.rpc.clients.channel import CHANNEL_OPTIONS, channel
from stratos.rpc.clients.rotating_channel import RotatingChannel

__all__ = ["ANY_WORKER", "PLAIN", "Dialer", "PeerRole"]


class Dialer:
    """Makes channels to the other processes of a platform.

    Args:
        tls: this process's certificate; ``None`` for plain text.
    """

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self.tls = tls

    def channel(self, address: str, role: str) -> grpc.aio.Channel:
        """A channel to host:port; it connects at the first call and reconnects by itself.

        Args:
            address: host:port.
            role: ``PeerRole`` that the peer must have, or ``ANY_WORKER``; it is not looked at without mTLS.
        """
        if self.tls is None:
            return channel(address)
        options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", dns_name(self.tls.config.domain, role)))

        def connect(material: TlsMaterial) -> grpc.aio.Channel:
            credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
            return grpc.aio.secure_channel(address, credentials, options=options)

        return RotatingChannel(self.tls.current, connect)


PLAIN = Dialer()
"""Without mTLS: the default of one machine, and of tests."""
