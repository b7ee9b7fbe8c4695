"""Transports by name.

``inproc`` within one process, ``shm`` on one machine, ``gloo`` between machines.  Rooms for ``cuda_ipc`` (one GPU, or
NVLink peers of a node), ``nccl`` (GPU pools) and ``nixl`` do not exist yet.
"""

from __future__ import annotations

from stratos.kv.gloo import GlooReceiver, GlooSender
from stratos.kv.inproc import InprocHub, InprocReceiver, InprocSender
from stratos.kv.settings import TransportConfig
from stratos.kv.shm import ShmReceiver, ShmSender
from stratos.kv.transfer import Receiver, Sender

TRANSPORTS = ("inproc", "shm", "gloo")


def make_receiver(name: str, incarnation: str, config: TransportConfig, *, hub: InprocHub | None = None) -> Receiver:
    """The receiver of a transport.

    Args:
        name: one of ``TRANSPORTS``.
        incarnation: of the receiving process.
        config: of all transports.
        hub: shared by both ends of ``inproc``.

    Raises:
        ValueError: an unknown name, or no hub for ``inproc``.
    """
    if name == "shm":
        return ShmReceiver(incarnation, config.staging, config.shm_directory)
    if name == "gloo":
        return GlooReceiver(incarnation, config.staging, config.gloo)
    if name == "inproc":
        return InprocReceiver(incarnation, config.staging, _checked(hub))
    raise _unknown(name)


def make_sender(name: str, config: TransportConfig, *, hub: InprocHub | None = None, max_pairs: int = 64) -> Sender:
    """The sender of a transport. Raises ``ValueError`` as ``make_receiver``."""
    if name == "shm":
        return ShmSender(config.shm_directory, max_pairs)
    if name == "gloo":
        return GlooSender(config.gloo, max_pairs)
    if name == "inproc":
        return InprocSender(_checked(hub), max_pairs)
    raise _unknown(name)


def _checked(hub: InprocHub | None) -> InprocHub:
    if hub is None:
        raise ValueError("the inproc transport needs a hub that both ends share")
    return hub


def _unknown(name: str) -> ValueError:
    return ValueError(f"unknown KV transport {name!r}; this build has {', '.join(TRANSPORTS)}")
