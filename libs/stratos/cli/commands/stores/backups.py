"""``stratos admin backup`` and ``backups``: copies of what is in Redis alone, kept in an object store."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.commands.stores.options import (
    BackupsOption,
    ObjectsOption,
    PrefixOption,
    RedisOption,
    S3Option,
    find_target,
)
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption

backups_app = typer.Typer()


@backups_app.command("backup")
def backup(
    keep: Annotated[int, typer.Option(min=1, max=60, help="Newest backups that stay.")] = 14,
    backups: BackupsOption = "",
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Write all that is in Redis alone into an object store: tenants, keys, ledger, spend, audit log.

    It is as secret as the Redis is. `adopt-store --from-backup latest` puts it back.
    """
    from stratos.cli.backups import make_backup

    with explained_errors():
        target = find_target(redis_url, object_store, s3_endpoint, prefix, data_dir, run)
        made = asyncio.run(make_backup(target, backups, keep))
    typer.echo(f"backup {made.name}: {made.num_records} records, {made.num_lines} lines of ledger and audit log")
    if made.removed:
        typer.echo(f"removed: {', '.join(made.removed)}")


@backups_app.command("backups")
def list_backups(
    backups: BackupsOption = "",
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """List the backups, oldest first; one that broke off cannot be put back."""
    from stratos.cli.backups import list_backups

    with explained_errors():
        target = find_target(redis_url, object_store, s3_endpoint, "", data_dir, run)
        found = asyncio.run(list_backups(target, backups))
    for one in found:
        typer.echo(f"{one.name}  {one.num_bytes:>12,} bytes{'' if one.is_complete else '  broke off'}")
    if not found:
        typer.echo("there are none")
