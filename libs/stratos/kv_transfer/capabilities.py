"""Reach of a process, and needs of a transport: both ends must have the facts, and they must fit.

A fact that is not known fits nothing, so to a peer that leaves it out KV goes over the network.  The source chooses
(``can_reach``) and the receiver checks the choice (``may_be_chosen``), less strictly in two cases: which memory the
source's GPU reaches is for the source to know, and a source of a build before these facts went by addresses.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from dataclasses import dataclass
from pathlib import Path

from stratos.core.device.facts import NO_DEVICE, DeviceFacts
from stratos.kv_transfer.private_directory import private_directory

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Facts that a process sends to its peers; an empty one is unknown."""

    host: str = ""
    """The machine, as it was booted: containers of one machine share it, and nothing else does."""
    shared_memory: str = ""
    """The directory of shared memory, by file system and inode: equal where two processes see the same one."""
    device: str = ""
    """UUID of the GPU that it computes on."""
    fabric: str = ""
    """NVLink domain of that GPU."""


UNKNOWN = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCapabilities:
    """Facts of this process about itself; ``peers`` are GPUs whose memory its own one reaches."""

    facts: Capabilities = UNKNOWN
    peers: frozenset[str] = frozenset()


NOTHING_SHARED = LocalCapabilities()


class Reach(enum.Enum):
    """Which processes a transport joins."""

    PROCESS = "within one process"
    SHARED_MEMORY = "processes of one host that see one directory of shared memory"
    DEVICE_MEMORY = "the same, with one GPU or two of which the source's reaches the other's memory"
    DEVICES = "processes with a GPU each"
    NETWORK = "any processes"


def can_reach(reach: Reach, mine: LocalCapabilities, theirs: Capabilities) -> bool:
    """Whether a transport joins this process, as the source, with another one."""
    match reach:
        case Reach.PROCESS:
            return False  # another process never is this one
        case Reach.SHARED_MEMORY:
            return _share_memory(mine.facts, theirs)
        case Reach.DEVICE_MEMORY:
            near = {mine.facts.device, *mine.peers} - {""}
            return _share_memory(mine.facts, theirs) and theirs.device in near
        case Reach.DEVICES:  # NCCL refuses two ranks on one device
            return bool(mine.facts.device and theirs.device) and mine.facts.device != theirs.device
        case Reach.NETWORK:
            return True


def may_be_chosen(reach: Reach, mine: LocalCapabilities, theirs: Capabilities, *, is_one_host: bool) -> bool:
    """Whether a source may have chosen a transport to this process, the receiver.

    Args:
        reach: of the transport.
        mine: of the receiver.
        theirs: of the source.
        is_one_host: the addresses of both have one host; all that is known of a source which sends no facts.
    """
    if reach is Reach.SHARED_MEMORY and theirs == UNKNOWN:
        return is_one_host
    if reach is Reach.DEVICE_MEMORY:  # only the source maps memory, so it must see both GPUs, and the receiver need not
        return _share_memory(mine.facts, theirs) and bool(mine.facts.device and theirs.device)
    return can_reach(reach, mine, theirs)


def share_fabric(mine: LocalCapabilities, theirs: Capabilities) -> bool:
    """Both GPUs hang on the same NVLink switches."""
    return bool(mine.facts.fabric) and mine.facts.fabric == theirs.fabric


def find_capabilities(directory: Path, device: DeviceFacts = NO_DEVICE) -> LocalCapabilities:
    """Facts of this process.

    Args:
        directory: of shared memory; made when it is not there.
        device: that it computes on.
    """
    facts = Capabilities(host=_boot_id(), shared_memory=_identity(directory), device=device.uuid, fabric=device.fabric)
    return LocalCapabilities(facts=facts, peers=frozenset(device.peers))


def _share_memory(mine: Capabilities, theirs: Capabilities) -> bool:
    known = mine.host and mine.shared_memory
    return bool(known) and (mine.host, mine.shared_memory) == (theirs.host, theirs.shared_memory)


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


def _identity(directory: Path) -> str:
    try:
        found = private_directory(directory).stat()
    except (OSError, ValueError) as error:
        _log.warning("no KV through shared memory: %s", error)
        return ""
    return f"{found.st_dev:x}.{found.st_ino:x}"
