"""``stratos admin``: the store of tenants, keys and adapters, of a running platform or at given addresses."""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.money import add_money_commands
from stratos.cli.commands.shared import (
    RunOption,
    TenantOption,
    WaitOption,
    explained_errors,
)
from stratos.cli.commands.stores.options import (
    BackupsOption,
    ObjectsOption,
    PrefixOption,
    RedisOption,
    S3Option,
    find_target,
)
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import BadRequest
from stratos.core.tenancy.plan import LOCAL, STANDARD
from stratos.core.tenancy.roles import Role
from stratos.store.keys import DEFAULT_PEPPER_ID

admin_app = typer.Typer(help="The store of tenants, keys and adapters.", no_args_is_help=True)
add_money_commands(admin_app)


@admin_app.command("init-store")
def init_store(
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    wait_s: WaitOption = 0,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    first_key: Annotated[
        str, typer.Option(envvar="STRATOS_FIRST_KEY", help="A first key, made elsewhere; it needs the pepper.")
    ] = "",
    admin_key: Annotated[
        str, typer.Option(envvar="STRATOS_FIRST_ADMIN_KEY", help="One of the role admin, of tenant platform.")
    ] = "",
    pepper: Annotated[str, typer.Option(envvar="STRATOS_KEY_PEPPER", help="Pepper of the gateways.")] = "",
    pepper_id: Annotated[str, typer.Option(envvar="STRATOS_KEY_PEPPER_ID")] = DEFAULT_PEPPER_ID,
    tenant: Annotated[str, typer.Option(help="Tenant of the first key.")] = "default",
    plan: Annotated[str, typer.Option(help="Plan of that tenant, where it is new.")] = STANDARD.name,
    role: Annotated[Role, typer.Option(help="What the owner of the first key may do.")] = Role.TENANT,
) -> None:
    """Set up the store of a new installation, once; nothing can be written before. Running it again changes nothing.

    Where the object store has outlived its Redis, its store is taken over, and its adapters are put back; one that has
    a ledger is left to `adopt-store`. Gateways are ready once they have read a store: first keys that are given here
    are in it moments after it is one.
    """
    from stratos.cli.keyring import GivenKey, set_up_with_keys
    from stratos.cli.stores import once_answered
    from stratos.common.clock import SystemClock
    from stratos.store.keys import Peppers

    keys = [
        GivenKey(text=first_key, tenant=tenant, name="first", first_plan=plan, role=role),
        GivenKey(text=admin_key, tenant="platform", name="admin", first_plan=LOCAL.name, role=Role.ADMIN),
    ]
    given = [key for key in keys if key.text]
    with explained_errors():
        key_ids = [key.key_id for key in given]
        if given and not pepper:
            raise BadRequest("a first key needs the pepper of the gateways", param="--pepper")
        target = find_target(redis_url, object_store, s3_endpoint, prefix, data_dir, run)
        peppers = Peppers(current=pepper, current_id=pepper_id) if given else None
        set_up = partial(set_up_with_keys, target, peppers, given)
        store_id, revoked = asyncio.run(once_answered(set_up, wait_s, SystemClock()))
    typer.echo(f"the store is {store_id}")
    for key_id, key in zip(key_ids, given, strict=True):
        state = "was revoked: it stays so" if key_id in revoked else f"is one of tenant {key.tenant}"
        typer.echo(f"the key {key_id} {state}")


@admin_app.command("add-key")
def add_key(
    redis_url: Annotated[str, typer.Option("--redis-url", envvar="REDIS_URL", help="Redis with the store.")],
    pepper: Annotated[str, typer.Option(envvar="STRATOS_KEY_PEPPER", help="Pepper of the gateways, their KEY_PEPPER.")],
    key: Annotated[str, typer.Option(envvar="STRATOS_API_KEY", help="The key; empty adds none.")] = "",
    pepper_id: Annotated[str, typer.Option(envvar="STRATOS_KEY_PEPPER_ID")] = DEFAULT_PEPPER_ID,
    tenant: TenantOption = "default",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    plan: Annotated[str, typer.Option(help="Plan of a new tenant; one that is there keeps its own.")] = STANDARD.name,
    role: Annotated[Role, typer.Option(help="What its owner may do; a key that is there keeps its own.")] = Role.TENANT,
    prefix: PrefixOption = "",
    wait_s: WaitOption = 0,
) -> None:
    """Register a key that was made elsewhere, such as the first one of an installation; again changes nothing."""
    from stratos.cli.keyring import GivenKey, register_keys
    from stratos.cli.stores import once_answered
    from stratos.common.clock import SystemClock
    from stratos.store.keys import Peppers

    if not key:
        return typer.echo("no key is given: none is added")
    with explained_errors():
        peppers = Peppers(current=pepper, current_id=pepper_id)
        given = GivenKey(text=key, tenant=tenant, name=name, first_plan=plan, role=role)
        key_id = given.key_id
        register = partial(register_keys, redis_url, peppers, [given], prefix)
        asyncio.run(once_answered(register, wait_s, SystemClock()))
    typer.echo(f"the key {key_id} is one of tenant {tenant}")


@admin_app.command("export")
def export(
    path: Annotated[Path, typer.Argument(help="File to write, mode 0600: MACs, salts, wrapped data keys.")],
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Write sums, spend, entries in Redis and the audit log into this.")
    ] = None,
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Write tenants, keys and adapters into a file, for the day on which Redis is lost."""
    from stratos.cli.money.ledger_copies import export_ledger
    from stratos.cli.stores import run_export

    with explained_errors():
        target = find_target(redis_url, object_store, s3_endpoint, prefix, data_dir, run)
        copy = asyncio.run(run_export(target, path))
        typer.echo(f"{len(copy.records)} records are in {path}")
        if ledger is not None:
            num_lines = asyncio.run(export_ledger(target, ledger, copy.store_id))
            typer.echo(f"{num_lines} lines of the ledger and the audit log are in {ledger}")


@admin_app.command("verify-ledger")
def verify_ledger(
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Read all segments of the ledger: name what is missing or altered, and compare entries with sums.

    Ends with exit code 1 where something is wrong. It changes nothing, and gateways may run beside it.
    """
    from stratos.cli.money.ledger_copies import verify_chain

    with explained_errors():
        report = asyncio.run(verify_chain(find_target(redis_url, object_store, s3_endpoint, prefix, data_dir, run)))
    typer.echo(
        f"{report.num_segments} segments with {report.num_lines} lines, {report.num_days} days of tenants compared"
    )
    for problem in report.problems:
        typer.echo(f"error: {problem}", err=True)
    if report.problems:
        raise typer.Exit(1)


@admin_app.command("adopt-store")
def adopt_store(
    copies: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Exported file or a gateway's copy; may be repeated. Default: the platform's copies."
        ),
    ] = None,
    gateways: Annotated[
        list[str] | None, typer.Option("--gateway", help="host:port of a gateway's gRPC server that still knows all.")
    ] = None,
    tls_folder: Annotated[
        Path | None,
        typer.Option(
            help="With mTLS: folder with tls.crt, tls.key and ca.crt of a gateway. Default: the running platform's."
        ),
    ] = None,
    domain: Annotated[str, typer.Option(help="With mTLS: name of the platform in its certificates.")] = "stratos",
    replace: Annotated[
        bool, typer.Option("--replace", help="Even where Redis holds another store now, which then goes.")
    ] = False,
    backup: Annotated[
        str, typer.Option("--from-backup", help="Name of a backup, or `latest`, in place of files.")
    ] = "",
    backups: BackupsOption = "",
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Exported file of the ledger; its segments are in the object store.")
    ] = None,
    skips_ledger: Annotated[
        bool, typer.Option("--without-ledger", help="Leave the ledger as it is, where its segments cannot be read.")
    ] = False,
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Make a Redis that was emptied the store that gateways follow, filled from the object store and from copies.

    Adapters and models come from the manifest in the object store; tenants and keys come from copies alone. Entries of
    the ledger that were sealed after its copy come from segments, all of them where there is no copy.
    """
    from stratos.cli.backups import fetch_backup
    from stratos.cli.local.running import find_platform
    from stratos.cli.money.ledger_copies import fill_ledger
    from stratos.cli.stores import run_adopt
    from stratos.common.tls.identity import PeerRole
    from stratos.pki.local import dial_as, dialer_of, role_config

    with explained_errors(), tempfile.TemporaryDirectory(prefix="stratos-restore-") as folder:
        if backup and (copies or ledger):
            raise BadRequest("a backup has its own records and ledger: give no files beside it", param="--from-backup")
        target = find_target(redis_url, object_store, s3_endpoint, prefix, data_dir, run)
        if backup:
            records, ledger = fetch_backup(target, backups, backup, Path(folder))
            copies = [records]
        kept = [] if redis_url or copies or gateways else sorted((data_dir / "copies").glob("*.jsonl"))
        if tls_folder is not None:
            dialer = dialer_of(role_config(tls_folder, domain))
        else:
            facts = find_platform(data_dir, run) if gateways and not redis_url else None
            dialer = dial_as(facts.tls_folder if facts else "", PeerRole.GATEWAY)
        fill = partial(fill_ledger, target, ledger)
        paths, fill_or_not = copies or kept, None if skips_ledger else fill
        found = run_adopt(target, paths, gateways or (), replaces=replace, dialer=dialer, fill_ledger=fill_or_not)
        adoption = asyncio.run(found)
    live = ", ".join(f"{num} {kind.value}s" for kind, num in adoption.num_live.items()) or "nothing"
    typer.echo(f"the store is {adoption.store_id}: {live}, {adoption.num_tombstones} tombstones")
