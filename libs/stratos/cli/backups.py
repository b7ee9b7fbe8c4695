"""Backups of a platform's Redis: made of the copies that ``stratos admin export`` writes, kept in an object store."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from stratos.cli.money.ledger_copies import export_ledger
from stratos.cli.stores import StoreTarget, run_export
from stratos.store.backups.backup_store import BackupFolder, BackupStore
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

RECORDS = "records.jsonl"
LEDGER = "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class Backup:
    """Result of a backup: its name, its size, and the older ones that went for it."""

    name: str
    num_records: int
    num_lines: int
    removed: list[str]


@asynccontextmanager
async def _open(target: StoreTarget, url: str) -> AsyncIterator[BackupStore]:
    config = ObjectStoreConfig(url=url or target.object_store_url, s3_endpoint_url=target.s3_endpoint_url)
    async with opened_store(config) as objects:
        yield BackupStore(objects)


async def make_backup(target: StoreTarget, url: str, num_kept: int) -> Backup:
    """Copy records, sums, spend, entries and the audit log, and remove the oldest copies.

    Args:
        target: the stores.
        url: object store of the backups; empty: that of the target.
        num_kept: complete backups that stay.
    """
    with tempfile.TemporaryDirectory(prefix="stratos-backup-") as folder:
        files = {name: Path(folder) / name for name in (RECORDS, LEDGER)}
        copy = await run_export(target, files[RECORDS])
        num_lines = await export_ledger(target, files[LEDGER], copy.store_id)
        async with _open(target, url) as backups:
            name = await backups.write(time.time(), copy.store_id, files)
            return Backup(name, len(copy.records), num_lines, await backups.prune(num_kept))


async def list_backups(target: StoreTarget, url: str) -> list[BackupFolder]:
    """List all of them, oldest first."""
    async with _open(target, url) as backups:
        return await backups.folders()


def fetch_backup(target: StoreTarget, url: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Fetch the files of records and of the ledger, checked; raises like ``BackupStore.fetch``."""

    async def fetch() -> None:
        async with _open(target, url) as backups:
            await backups.fetch(name, folder)

    asyncio.run(fetch())
    return folder / RECORDS, folder / LEDGER
