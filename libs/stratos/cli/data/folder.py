"""The data directory of a laptop platform: what outlives a run, and one folder per run.

    <data dir>/credentials.json   pepper, API key and store id, mode 0600
    <data dir>/platform.key       wraps the data keys of tenants, mode 0600; no copy and no export has it
    <data dir>/redis/             append-only file of the embedded Redis (used by the run that holds its lock)
    <data dir>/store/             object store of the laptop
    <data dir>/copies/            what each gateway knew of tenants, keys and adapters, mode 0600
    <data dir>/kv/                sealed KV of tenants (``--kv-disk``), a folder per worker; may be deleted between runs
    <data dir>/digests.json       digests of model folders, by the state of their files
    <data dir>/models/            models of the registry that are, or were, served here; may be deleted between runs
    <data dir>/gguf/              model folders of GGUF files, which link to them; may be deleted between runs
    <data dir>/run/<id>/          everything of one run: address files, workers/, platform.json, logs/
    /dev/shm/stratos-<id>/        staging rings of the run's workers (a folder of the run if there is no /dev/shm)

A run holds a lock on ``lock`` in both of its folders while it lives, so a later run can tell a living one from the
remains of a killed one and sweep those away.  A folder gets its name only once it is locked.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from stratos.common.errors import BadRequest, DependencyDown
from stratos.common.files import replace_file

MIN_FREE_BYTES = 64 * 1024 * 1024
SHM_ROOT = Path("/dev/shm")  # noqa: S108 - private folders (0700) with random names are made in it
SHM_PREFIX = "stratos-"


def write_json_atomically(path: Path, content: Any, mode: int = 0o600) -> None:
    """Replace ``path`` in one step, so that a reader sees the old content or the new."""
    replace_file(path, json.dumps(content).encode(), mode=mode)


def try_lock(path: Path) -> IO[bytes] | None:
    """Take the lock of ``path`` until the file object or the process ends; ``None`` when a living process has it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def make_locked_folder(path: Path) -> IO[bytes]:
    """Make a private folder whose lock is held from the moment it is visible; returns the lock."""
    hidden = path.with_name(f".{path.name}")
    hidden.mkdir(mode=0o700)
    lock = try_lock(hidden / "lock")
    assert lock is not None, "a folder without a visible name cannot be locked by another process"
    hidden.rename(path)
    return lock


def sweep(folder: Path, pattern: str) -> None:
    """Delete the folders of this user whose lock is not held any more."""
    for path in folder.glob(pattern):
        try:
            is_ours = path.stat().st_uid == os.getuid() and (path / "lock").exists()
            lock = try_lock(path / "lock") if is_ours else None
        except FileNotFoundError:
            continue  # its run has just ended
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            lock.close()


@dataclass(slots=True)
class RunDir:
    """The folder of one run; ``remove`` leaves nothing of it."""

    path: Path
    shm_path: Path
    _locks: tuple[IO[bytes], ...] = field(repr=False)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def workers_folder(self) -> Path:
        """Where routers look for workers: a file of each process that has some."""
        return self.path / "workers"

    @property
    def workers_file(self) -> Path:
        """The workers of the supervisor."""
        return self.workers_folder / "platform.json"

    @property
    def targets_file(self) -> Path:
        """Where a Prometheus looks for processes."""
        return self.path / "targets.json"

    @property
    def platform_file(self) -> Path:
        """Where the other commands find this run."""
        return self.path / "platform.json"

    @property
    def work_path(self) -> Path:
        """Files that need not outlive the run, such as adapters while they are checked."""
        return self.path / "work"

    @property
    def tls_path(self) -> Path:
        """Certificates by role, in a run with mTLS."""
        return self.path / "tls"

    @property
    def logs_path(self) -> Path:
        """Folder of the processes' log files."""
        return self.path / "logs"

    def log_path(self, name: str) -> Path:
        """Log of one process, all its restarts together."""
        return self.logs_path / f"{name}.log"

    def address_file(self, name: str) -> Path:
        """Where a service writes its addresses once it serves."""
        return self.path / f"{name}.address.json"

    def remove(self, *, keep_logs: bool = False) -> None:
        """Delete the run; with ``keep_logs`` its log files stay until the next start."""
        shutil.rmtree(self.shm_path, ignore_errors=True)
        if keep_logs:
            for entry in self.path.iterdir():
                if entry.name not in ("logs", "lock"):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        for lock in self._locks:
            lock.close()


class DataDir:
    """Layout and care of one data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def credentials_file(self) -> Path:
        """Pepper and API key."""
        return self.path / "credentials.json"

    @property
    def platform_key_file(self) -> Path:
        """Secret that wraps the data keys of tenants."""
        return self.path / "platform.key"

    @property
    def kv_path(self) -> Path:
        """Sealed KV of tenants, a folder per worker; may be deleted between runs."""
        return self.path / "kv"

    @property
    def store_path(self) -> Path:
        """The laptop's object store."""
        return self.path / "store"

    @property
    def copies_path(self) -> Path:
        """Folder of the gateways' copies of tenants, keys and adapters, a file for each gateway."""
        return self.path / "copies"

    @property
    def digests_file(self) -> Path:
        """Digests of model folders that earlier runs computed."""
        return self.path / "digests.json"

    @property
    def models_path(self) -> Path:
        """Cache of models of the registry, which the platform's processes share."""
        return self.path / "models"

    @property
    def gguf_path(self) -> Path:
        """Model folders of GGUF files."""
        return self.path / "gguf"

    def prepare(self) -> None:
        """Create the directory and check that it can be used.

        Raises:
            BadRequest: not writable. DependencyDown: the disk is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in ("run", "redis", "store"):
                (self.path / folder).mkdir(exist_ok=True, mode=0o700)
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            raise BadRequest(
                f"the data directory {self.path} cannot be used ({error.strerror}); "
                "make it writable, free some space, or choose another one with --data-dir"
            ) from error
        free = shutil.disk_usage(self.path).free
        if free < MIN_FREE_BYTES:
            raise DependencyDown(
                f"only {free // 2**20} MB are free on the disk of {self.path}; at least "
                f"{MIN_FREE_BYTES // 2**20} MB are needed: free some space or choose another --data-dir"
            )

    def run_paths(self, run_id: str) -> RunDir:
        """The folders of a run that another process holds."""
        path = self.path / "run" / run_id
        return RunDir(path, _shm_path(path), ())

    def new_run(self) -> RunDir:
        """Sweep the remains of killed runs, then open a folder for this one."""
        sweep(self.path / "run", "*")
        if SHM_ROOT.is_dir():
            sweep(SHM_ROOT, f"{SHM_PREFIX}*")
        path = self.path / "run" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        lock = make_locked_folder(path)
        shm_path = _shm_path(path)
        run = RunDir(path, shm_path, (lock, make_locked_folder(shm_path)))
        (path / "logs").mkdir(mode=0o700)
        run.work_path.mkdir(mode=0o700)
        run.workers_folder.mkdir(mode=0o700)
        return run

    def living_runs(self) -> Iterator[Mapping[str, Any]]:
        """``platform.json`` of every run whose supervisor lives, newest first."""
        folder = self.path / "run"
        for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():
            lock = path / "lock"
            if not lock.exists() or not (path / "platform.json").exists():
                continue
            held = try_lock(lock)
            if held is None:
                yield json.loads((path / "platform.json").read_text(encoding="utf-8"))
            else:
                held.close()


def _shm_path(run_path: Path) -> Path:
    return SHM_ROOT / f"{SHM_PREFIX}{run_path.name}" if SHM_ROOT.is_dir() else run_path / "shm"
