"""Transports by name: a table of abilities, reach, and how both ends of each are made.

``inproc`` within one process, ``shm`` on one machine, between machines ``tls`` with mTLS and ``gloo`` without it,
``nccl`` between GPU pools, ``cuda_ipc`` on one GPU or between neighbours.  A room for ``nixl`` does not exist yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from stratos.common.tls.contexts import TlsContexts
from stratos.kv_transfer.capabilities import (
    Capabilities,
    LocalCapabilities,
    Reach,
    can_reach,
    may_be_chosen,
    share_fabric,
)
from stratos.kv_transfer.device.cuda import CudaMemory
from stratos.kv_transfer.device.receiver import DeviceRings, check_slots
from stratos.kv_transfer.device.rings import staging_of
from stratos.kv_transfer.device.sender import DeviceAttacher
from stratos.kv_transfer.device.trial import find_fault
from stratos.kv_transfer.groups.gloo import gloo_ends
from stratos.kv_transfer.groups.nccl import NcclGroups, find_nccl_fault
from stratos.kv_transfer.groups.ordered import ordered_ends
from stratos.kv_transfer.inproc import InprocHub, inproc_ends
from stratos.kv_transfer.port.local import PortTransport
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from stratos.kv_transfer.shm import shm_ends
from stratos.kv_transfer.tls.receiver import TlsRings
from stratos.kv_transfer.tls.sender import connect_tls
from stratos.kv_transfer.transfer import TransportEnds

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Parts that transports are made of."""

    config: TransportConfig
    hub: InprocHub | None
    tls: TlsContexts | None
    device: str

    @property
    def memory(self) -> CudaMemory:
        if not self.device:
            raise ValueError("the cuda_ipc transport needs a GPU")
        return CudaMemory(self.config.cuda_ipc.device, self.device)

    @property
    def shared_hub(self) -> InprocHub:
        if self.hub is None:
            raise ValueError("the inproc transport needs a hub that both ends share")
        return self.hub

    @property
    def certificate(self) -> TlsContexts:
        if self.tls is None:
            raise ValueError("the tls transport needs a certificate")
        return self.tls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transport:
    ends: Callable[[_Parts], TransportEnds]
    reach: Reach = Reach.NETWORK
    is_encrypted: bool = True
    """On the network, if it uses one."""
    is_on_device: bool = False
    """Slots are in a device's memory: payloads need not pass through the host's."""
    staging: Callable[[TransportConfig], StagingConfig] = lambda config: config.staging
    fault: Callable[[_Parts], str] = lambda _: ""
    """Tries it at start: why it cannot work in this process, or nothing."""


def _device_ends(parts: _Parts) -> TransportEnds:
    directory, timeout_s, memory = parts.config.shm_directory, parts.config.cuda_ipc.timeout_s, parts.memory
    rings = DeviceRings(staging_of(parts.config), directory, timeout_s, memory)
    connect = DeviceAttacher(directory, timeout_s, memory).connect
    return TransportEnds(open_ring=rings.open_ring, connect=connect, close=rings.close)


def _tls_ends(parts: _Parts) -> TransportEnds:
    config, contexts = parts.config.tls, parts.certificate
    rings = TlsRings(parts.config.staging, config, contexts)
    connect = partial(connect_tls, config=config, contexts=contexts)
    return TransportEnds(open_ring=rings.open_ring, connect=connect, close=rings.close)


_TRANSPORTS: Mapping[str, _Transport] = {
    "cuda_ipc": _Transport(
        ends=_device_ends,
        reach=Reach.DEVICE_MEMORY,
        is_on_device=True,
        staging=staging_of,
        fault=lambda parts: find_fault(parts.memory, parts.config.shm_directory),
    ),
    "inproc": _Transport(ends=lambda parts: inproc_ends(parts.config.staging, parts.shared_hub), reach=Reach.PROCESS),
    "shm": _Transport(
        ends=lambda parts: shm_ends(parts.config.staging, parts.config.shm_directory), reach=Reach.SHARED_MEMORY
    ),
    "tls": _Transport(ends=_tls_ends),
    "gloo": _Transport(ends=lambda parts: gloo_ends(parts.config.staging, parts.config.gloo), is_encrypted=False),
    "nccl": _Transport(
        ends=lambda parts: ordered_ends(parts.config.staging, parts.config.nccl, NcclGroups(parts.config.nccl)),
        reach=Reach.DEVICES,
        is_encrypted=False,
        fault=lambda _: find_nccl_fault(),
    ),
}
TRANSPORTS = tuple(_TRANSPORTS)


def reachable_transports(
    offered: Iterable[str], spoken: Iterable[str], mine: LocalCapabilities, theirs: Capabilities
) -> list[str]:
    """Transports of ``offered`` that both ends speak and that join them, in the order of preference.

    That is the order of ``offered``; between GPUs of one NVLink fabric what crosses the network comes last.
    """
    known = [name for name in offered if name in spoken and name in _TRANSPORTS]
    found = [name for name in known if can_reach(_TRANSPORTS[name].reach, mine, theirs)]
    if share_fabric(mine, theirs):
        found.sort(key=lambda name: _TRANSPORTS[name].reach is Reach.NETWORK)
    return found


def is_choice_valid(name: str, mine: LocalCapabilities, theirs: Capabilities, *, is_one_host: bool) -> bool:
    """Whether a transport that a source chose joins it with this process (``capabilities.may_be_chosen``)."""
    return name in _TRANSPORTS and may_be_chosen(_TRANSPORTS[name].reach, mine, theirs, is_one_host=is_one_host)


def usable_transports(config: TransportConfig, *, has_tls: bool, has_device_pages: bool = False) -> tuple[str, ...]:
    """The transports that a process may use, best first.

    Args:
        config: of all transports.
        has_tls: mTLS is on.
        has_device_pages: the engine hands out payloads in a device's memory of this process.

    Raises:
        ValueError: none is left, or one is named where it cannot run; the message names the setting.
    """
    if "cuda_ipc" in config.names and not has_device_pages:
        raise ValueError("the KV transport cuda_ipc needs device cuda and runner.kernels.copy_stream")
    if "cuda_ipc" in config.names:
        check_slots(config.staging)
    allowed = {"gloo": config.allow_unencrypted_gloo, "nccl": config.allow_unencrypted_nccl}

    def is_usable(name: str) -> bool:
        if not has_tls:
            return name != "tls"
        return _of(name).is_encrypted or allowed[name]

    names = tuple(name for name in config.names if is_usable(name))
    if names:
        return names
    if has_tls:
        raise ValueError(
            "gloo and nccl neither encrypt nor authenticate; add tls, or set allow_unencrypted_gloo (or _nccl)"
        )
    raise ValueError("the KV transport tls needs mTLS; set the certificate, or add shm or gloo")


def find_faults(config: TransportConfig, *, device: str = "") -> dict[str, str]:
    """Why transports that ``config`` names cannot work in this process, as far as a trial finds out. Blocks.

    Args:
        config: of all transports.
        device: UUID of this process' GPU.
    """
    parts, found = _Parts(config=config, hub=None, tls=None, device=device), {}
    for name in config.names:
        try:
            found[name] = _of(name).fault(parts)
        except ValueError as error:
            found[name] = str(error)
    return {name: fault for name, fault in found.items() if fault}


def working_transports(names: Iterable[str], faults: Mapping[str, str]) -> tuple[str, ...]:
    """Transports of ``names`` that a trial has found to work; the others are logged.

    Args:
        names: as ``usable_transports`` has them.
        faults: what ``find_faults`` found.

    Raises:
        ValueError: none does.
    """
    named = tuple(names)
    broken = {name: faults[name] for name in named if name in faults}
    for name, fault in broken.items():
        _log.warning("no KV over %s, the next transport is taken: %s", name, fault)
    if len(broken) == len(named):
        whys = "; ".join(f"{name}: {fault}" for name, fault in broken.items())
        raise ValueError(f"no KV transport works here, add another one ({whys})")
    return tuple(name for name in named if name not in broken)


def staging_for(name: str, config: TransportConfig) -> StagingConfig:
    """Slots of a transport."""
    return _of(name).staging(config)


def make_ends(
    name: str,
    config: TransportConfig,
    *,
    hub: InprocHub | None = None,
    tls: TlsContexts | None = None,
    device: str = "",
) -> TransportEnds:
    """Both ends of a transport, in this process.

    Args:
        name: one of ``TRANSPORTS``.
        config: of all transports.
        hub: shared by both ends of ``inproc``.
        tls: certificate of this process, for ``tls``.
        device: UUID of this process' GPU, for ``cuda_ipc``.

    Raises:
        ValueError: an unknown name, no hub for ``inproc``, no certificate for ``tls``, or no GPU for ``cuda_ipc``.
    """
    return _of(name).ends(_Parts(config=config, hub=hub, tls=tls, device=device))


def port_transports(
    config: TransportConfig, *, tls: TlsContexts | None = None, device: str = ""
) -> dict[str, PortTransport]:
    """Both ends of every transport that ``config`` names, as a data port makes them on first use."""
    return {
        name: PortTransport(
            make=partial(make_ends, name, config, tls=tls, device=device), is_on_device=_of(name).is_on_device
        )
        for name in config.names
    }


def _of(name: str) -> _Transport:
    if name not in _TRANSPORTS:
        raise ValueError(f"unknown KV transport {name!r}; this build has {', '.join(TRANSPORTS)}")
    return _TRANSPORTS[name]
