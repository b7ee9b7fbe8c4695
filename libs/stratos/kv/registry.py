"""Transports by name.

``inproc`` within one process, ``shm`` on one machine, ``gloo`` between machines.  Rooms for ``cuda_ipc`` (one GPU, or
NVLink peers of a node), ``nccl`` (GPU pools) and ``nixl`` do not exist yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stratos.kv.gloo import GlooConfig, GlooReceiver, GlooSender
from stratos.kv.inproc import InprocHub, InprocReceiver, InprocSender
from stratos.kv.receiver import ReceiverConfig
from stratos.kv.shm import ShmReceiver, ShmSender
from stratos.kv.transfer import Receiver, Sender

TRANSPORTS = ("inproc", "shm", "gloo")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """What single transports need; those that are not used may stay unset."""

    shm_directory: Path | None = None
    """Private directory that both ends can reach, best under /dev/shm."""
    hub: InprocHub | None = None
    """Shared by both ends of ``inproc``."""
    gloo: GlooConfig = field(default_factory=GlooConfig)


def make_receiver(name: str, config: ReceiverConfig, transport: TransportConfig) -> Receiver:
    """The receiver of a transport. Raises ``ValueError`` for an unknown name or a missing setting."""
    if name == "shm":
        return ShmReceiver(config, _directory(transport))
    if name == "gloo":
        return GlooReceiver(config, transport.gloo)
    if name == "inproc":
        return InprocReceiver(config, _hub(transport))
    raise _unknown(name)


def make_sender(name: str, transport: TransportConfig, *, max_pairs: int = 64) -> Sender:
    """The sender of a transport. Raises ``ValueError`` for an unknown name or a missing setting."""
    if name == "shm":
        return ShmSender(_directory(transport), max_pairs)
    if name == "gloo":
        return GlooSender(transport.gloo, max_pairs)
    if name == "inproc":
        return InprocSender(_hub(transport), max_pairs)
    raise _unknown(name)


def _directory(transport: TransportConfig) -> Path:
    if transport.shm_directory is None:
        raise ValueError("the shm transport needs shm_directory: a private directory, best under /dev/shm")
    return transport.shm_directory


def _hub(transport: TransportConfig) -> InprocHub:
    if transport.hub is None:
        raise ValueError("the inproc transport needs a hub that both ends share")
    return transport.hub


def _unknown(name: str) -> ValueError:
    return ValueError(f"unknown KV transport {name!r}; this build has {', '.join(TRANSPORTS)}")
