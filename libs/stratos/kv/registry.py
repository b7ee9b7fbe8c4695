"""Transports by name.

``inproc`` within one process, ``shm`` on one machine, between machines ``tls`` with mTLS and ``gloo`` without it.
Rooms for ``cuda_ipc`` (one GPU, or NVLink peers of a node), ``nccl`` (GPU pools) and ``nixl`` do not exist yet.
"""

from __future__ import annotations

from stratos.common.tls.contexts import TlsContexts
from stratos.kv.gloo import GlooReceiver, GlooSender
from stratos.kv.inproc import InprocHub, InprocReceiver, InprocSender
from stratos.kv.settings import TransportConfig
from stratos.kv.shm import ShmReceiver, ShmSender
from stratos.kv.tls.receiver import TlsReceiver
from stratos.kv.tls.sender import TlsSender
from stratos.kv.transfer import Receiver, Sender

TRANSPORTS = ("inproc", "shm", "tls", "gloo")


def usable_transports(config: TransportConfig, *, has_tls: bool) -> tuple[str, ...]:
    """The transports that a process may use, best first.

    Args:
        config: of all transports.
        has_tls: mTLS is on.

    Raises:
        ValueError: none is left; the message names the setting.
    """
    left_out = "tls" if not has_tls else "" if config.allow_unencrypted_gloo else "gloo"
    names = tuple(name for name in config.names if name != left_out)
    if names:
        return names
    if has_tls:
        raise ValueError("gloo neither encrypts nor authenticates; add tls, or set allow_unencrypted_gloo")
    raise ValueError("the KV transport tls needs mTLS; set the certificate, or add shm or gloo")


def make_receiver(
    name: str,
    incarnation: str,
    config: TransportConfig,
    *,
    hub: InprocHub | None = None,
    tls: TlsContexts | None = None,
) -> Receiver:
    """The receiver of a transport.

    Args:
        name: one of ``TRANSPORTS``.
        incarnation: of the receiving process.
        config: of all transports.
        hub: shared by both ends of ``inproc``.
        tls: certificate of this process, for ``tls``.

    Raises:
        ValueError: an unknown name, no hub for ``inproc``, or no certificate for ``tls``.
    """
    if name == "shm":
        return ShmReceiver(incarnation, config.staging, config.shm_directory)
    if name == "tls":
        return TlsReceiver(incarnation, config.staging, config.tls, _secured(tls))
    if name == "gloo":
        return GlooReceiver(incarnation, config.staging, config.gloo)
    if name == "inproc":
        return InprocReceiver(incarnation, config.staging, _checked(hub))
    raise _unknown(name)


def make_sender(
    name: str,
    config: TransportConfig,
    *,
    hub: InprocHub | None = None,
    tls: TlsContexts | None = None,
    max_pairs: int = 64,
) -> Sender:
    """The sender of a transport. Raises ``ValueError`` as ``make_receiver``."""
    if name == "shm":
        return ShmSender(config.shm_directory, max_pairs)
    if name == "tls":
        return TlsSender(config.tls, _secured(tls), max_pairs)
    if name == "gloo":
        return GlooSender(config.gloo, max_pairs)
    if name == "inproc":
        return InprocSender(_checked(hub), max_pairs)
    raise _unknown(name)


def _checked(hub: InprocHub | None) -> InprocHub:
    if hub is None:
        raise ValueError("the inproc transport needs a hub that both ends share")
    return hub


def _secured(tls: TlsContexts | None) -> TlsContexts:
    if tls is None:
        raise ValueError("the tls transport needs a certificate")
    return tls


def _unknown(name: str) -> ValueError:
    return ValueError(f"unknown KV transport {name!r}; this build has {', '.join(TRANSPORTS)}")
