"""Which workers exist, and where. Says nothing about whether they live.

    file:///path/workers.json   [{"worker_id", "address", "role"}, ...]; its owner replaces the file atomically
    folder:///path              every *.json in it is such a file, each with an owner of its own
    static://decode@host:port,prefill@host:port
    dns://decode@name:port,prefill@name:port,prefill@other-name:port
                                every address that a name resolves to, such as the pods of a headless Service

A malformed or missing file keeps the last good list: a half-done edit must not empty the fleet.  Nor does a name
service that is away, or that answers without an address.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stratos.common.clock import Clock
from stratos.core.placement import WorkerRole
from stratos.routing.fleet_state import Member
from stratos.rpc.clients.known_addresses import IsConnected
from stratos.rpc.clients.name_lookup import Resolve
from stratos.rpc.clients.peer_addresses import PeerAddresses

_log = logging.getLogger(__name__)
_SURE_NS = 2_000_000_000
"""A folder that changed so long ago has another time after the next change, however coarse its clock is."""
MAX_FILE_BYTES = 4 * 1024 * 1024
_KEYS = ("worker_id", "address", "role")


class InvalidDiscovery(ValueError):
    """The setting or the file cannot be understood; the message has the place and the cause."""


class Discovery(ABC):
    """A source of members."""

    is_by_name = False
    """The list comes from a name service, which must not be queried all the time."""

    @abstractmethod
    async def members(self, is_connected: IsConnected) -> tuple[Member, ...]:
        """The members now; never fails once there was a good list.

        Args:
            is_connected: whether the worker at an address answers; only names need to know.
        """

    @property
    @abstractmethod
    def problem(self) -> str:
        """Why there is no list at all yet; empty when there is one."""


class PolledDiscovery(Discovery):
    """A source on disk or in memory."""

    async def members(self, is_connected: IsConnected) -> tuple[Member, ...]:
        known = self.unchanged()
        return await asyncio.to_thread(self.poll) if known is None else known

    def unchanged(self) -> tuple[Member, ...] | None:
        """The members where they are those of the last poll; ``None`` where that is to be seen.  Reads nothing."""
        return None

    @abstractmethod
    def poll(self) -> tuple[Member, ...]:
        """The members now; quick, and never fails once there was a good list."""


class DnsDiscovery(Discovery):
    """Names per role.

    Raises:
        InvalidDiscovery: an entry is malformed, or there is none.
    """

    is_by_name = True

    def __init__(self, text: str, clock: Clock, resolve: Resolve | None = None) -> None:
        entries: dict[WorkerRole, list[str]] = {}
        for role, address in _entries(text, "dns"):
            entries.setdefault(role, []).append(address)
        if not entries:
            raise InvalidDiscovery("dns discovery: no name is given")
        self._names = {role: PeerAddresses(names, clock, resolve) for role, names in entries.items()}

    @property
    def problem(self) -> str:
        """Why there is no list at all yet: an answer without an address is a list."""
        missing = [name for names in self._names.values() for name in names.unanswered]
        return f"there was no answer yet for the name {missing[0]}" if missing else ""

    async def members(self, is_connected: IsConnected) -> tuple[Member, ...]:
        found = await asyncio.gather(*(names.now(is_connected) for names in self._names.values()))
        members: dict[str, Member] = {}
        for role, addresses in zip(self._names, found, strict=True):
            for address in sorted(addresses):
                members.setdefault(address, Member(address, address, role, is_named=False))
        return tuple(members.values())


class StaticDiscovery(PolledDiscovery):
    """A fixed list; the address is the worker's id."""

    problem = ""

    def __init__(self, text: str) -> None:
        self._members = tuple(Member(address, address, role) for role, address in _entries(text, "static"))
        _check_unique(self._members)

    def unchanged(self) -> tuple[Member, ...] | None:
        return self._members

    def poll(self) -> tuple[Member, ...]:
        return self._members


def _version(stat: os.stat_result) -> tuple[int, int, int]:
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


class FileDiscovery(PolledDiscovery):
    """A JSON file that is read again when its modification time, size or inode changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: tuple[Member, ...] | None = None
        self._seen: tuple[int, int, int] | None = None
        self._problem = f"discovery file {path} has not been read yet"

    @property
    def problem(self) -> str:
        """Why there is no list at all yet."""
        return self._problem if self._members is None else ""

    @property
    def newest(self) -> tuple[Member, ...]:
        """The newest good list, as the last poll found it."""
        return self._members or ()

    def unchanged(self) -> tuple[Member, ...] | None:
        """The list, while the file is the one that was read last."""
        try:
            return self._members if _version(self._path.stat()) == self._seen else None
        except OSError:
            return None

    def poll(self) -> tuple[Member, ...]:
        """The newest good list."""
        version: tuple[int, int, int] | None = None
        try:
            stat = self._path.stat()
            version = _version(stat)
            if version != self._seen:
                self._members = self._read(stat.st_size)
                self._problem = ""
            self._seen = version
        except FileNotFoundError:
            self._report("does not exist")
            self._seen = None
        except (OSError, ValueError, RecursionError) as error:
            self._report(str(error))
            self._seen = version
        return self._members or ()

    def _read(self, size: int) -> tuple[Member, ...]:
        if size > MAX_FILE_BYTES:
            raise InvalidDiscovery(f"has {size} bytes, at most {MAX_FILE_BYTES} are read")
        return parse_members(json.loads(self._path.read_bytes()))

    def _report(self, text: str) -> None:
        problem = f"discovery file {self._path}: {text}"
        if problem != self._problem:
            _log.warning("%s; %s", problem, "waiting for it" if self._members is None else "keeping the last good list")
        self._problem = problem


class FolderDiscovery(PolledDiscovery):
    """All files of a folder. A worker that two of them name is taken from the first one by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Path, FileDiscovery] = {}
        self._seen_ns = 0
        """Modification time of the folder as it was listed; 0 where the listing may lack what came in that moment."""

    @property
    def problem(self) -> str:
        """Why there is no list at all yet."""
        problems = [file.problem for file in self._files.values()]
        if "" in problems:
            return ""
        return next(iter(problems), f"discovery folder {self._path} has no file yet")

    def unchanged(self) -> tuple[Member, ...] | None:
        """The list, while no file came, went or changed."""
        try:
            is_same = self._path.stat().st_mtime_ns == self._seen_ns
        except OSError:
            return None
        if not is_same or any(file.unchanged() is None for file in self._files.values()):
            return None
        return self._sum()

    def poll(self) -> tuple[Member, ...]:
        """The newest good list of each file that is there."""
        with contextlib.suppress(OSError):  # a folder that is away for now takes no worker away
            changed_ns = self._path.stat().st_mtime_ns
            self._seen_ns = changed_ns if time.time_ns() - changed_ns > _SURE_NS else 0
            names = sorted(p for p in self._path.iterdir() if p.suffix == ".json" and not p.name.startswith("."))
            self._files = {path: self._files.get(path) or FileDiscovery(path) for path in names}
        for file in self._files.values():
            file.poll()
        return self._sum()

    def _sum(self) -> tuple[Member, ...]:
        members: dict[str, Member] = {}
        for file in self._files.values():
            for member in file.newest:
                members.setdefault(member.worker_id, member)
        return tuple(members.values())


def open_discovery(setting: str, clock: Clock, resolve: Resolve | None = None) -> Discovery:
    """The source that a setting names.

    Args:
        setting: URL.
        clock: of outages of the name service.
        resolve: looks names up; the system's resolver if absent.

    Raises:
        InvalidDiscovery: not a known scheme, or a malformed list.
    """
    parts = urlsplit(setting)
    if parts.scheme == "static":
        return StaticDiscovery(setting.removeprefix("static://"))
    if parts.scheme == "dns":
        return DnsDiscovery(setting.removeprefix("dns://"), clock, resolve)
    if parts.scheme in ("file", "folder") and parts.path and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
        return FileDiscovery(path) if parts.scheme == "file" else FolderDiscovery(path)
    raise InvalidDiscovery(
        f"discovery is {setting!r}; use file:///path/workers.json, folder:///path, "
        "static://decode@host:port,prefill@host:port or dns://decode@name:port,prefill@name:port"
    )


def parse_members(document: Any) -> tuple[Member, ...]:
    """Check a decoded discovery document; unknown keys are ignored.

    Raises:
        InvalidDiscovery: names the wrong entry.
    """
    if not isinstance(document, list):
        raise InvalidDiscovery("must be a JSON array of workers")
    members = []
    for index, entry in enumerate(document):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) and entry[key] for key in _KEYS):
            raise InvalidDiscovery(f"entry {index} must be an object with texts worker_id, address and role")
        members.append(Member(entry["worker_id"], _address(entry["address"]), _role(entry["role"])))
    _check_unique(members)
    return tuple(members)


def _check_unique(members: tuple[Member, ...] | list[Member]) -> None:
    names = [member.worker_id for member in members]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidDiscovery(f"worker_id {twice[0]!r} appears twice")


def _entries(text: str, scheme: str) -> Iterator[tuple[WorkerRole, str]]:
    """role@host:port, separated by commas."""
    for entry in filter(None, (part.strip() for part in text.split(","))):
        role, at, address = entry.partition("@")
        if not at:
            raise InvalidDiscovery(f"{scheme} discovery: {entry!r} is not role@host:port")
        yield _role(role), _address(address)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidDiscovery(f"{text!r} is not host:port")
    return text


def _role(text: str) -> WorkerRole:
    try:
        return WorkerRole(text)
    except ValueError:
        raise InvalidDiscovery(f"role {text!r} is neither prefill nor decode") from None
