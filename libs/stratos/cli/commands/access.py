"""``stratos keys`` and ``stratos tenants``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from stratos.cli.commands.shared import DEFAULT_DATA_DIR, DataDirOption, RunOption, TenantOption, explained_errors

keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
tenants_app = typer.Typer(help="Tenants and their priority classes.", no_args_is_help=True)


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    tenant: TenantOption = "default",
    priority_class: Annotated[
        int | None, typer.Option("--class", help="Priority class of a new tenant, 0 is the most urgent.")
    ] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Make an API key; it is shown once."""
    from stratos.cli.keyring import create_key
    from stratos.cli.local.running import find_platform

    with explained_errors():
        facts = find_platform(data_dir, run)
        made = create_key(facts, data_dir, tenant=tenant, name=name, priority_class=priority_class)
        typer.echo(asyncio.run(made))


@keys_app.command("list")
def keys_list(data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = "") -> None:
    """List keys by id; the keys themselves are not stored."""
    from stratos.cli.keyring import list_keys
    from stratos.cli.local.running import find_platform

    with explained_errors():
        records = asyncio.run(list_keys(find_platform(data_dir, run), data_dir))
    for record in records:
        typer.echo(
            f"{record.key_id}  {record.tenant:<20} {'disabled' if record.disabled else 'active':<9} {record.name}"
        )


@keys_app.command("revoke")
def keys_revoke(
    key_id: Annotated[str, typer.Argument(help="Id as `stratos keys list` shows it.")],
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Revoke a key, for good."""
    from stratos.cli.keyring import revoke_key
    from stratos.cli.local.running import find_platform

    with explained_errors():
        asyncio.run(revoke_key(find_platform(data_dir, run), data_dir, key_id=key_id))
    typer.echo(f"{key_id} is revoked")


@tenants_app.command("list")
def tenants_list(data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = "") -> None:
    """List tenants with their priority classes."""
    from stratos.cli.keyring import list_tenants
    from stratos.cli.local.running import find_platform

    with explained_errors():
        tenants = asyncio.run(list_tenants(find_platform(data_dir, run), data_dir))
    for tenant in tenants:
        typer.echo(f"{tenant.name:<20} class {tenant.priority_class}")


@tenants_app.command("set-class")
def tenants_set_class(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    priority_class: Annotated[int, typer.Argument(help="0 is the most urgent.")],
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Change the priority class of a tenant's future requests."""
    from stratos.cli.keyring import set_class
    from stratos.cli.local.running import find_platform

    with explained_errors():
        facts = find_platform(data_dir, run)
        asyncio.run(set_class(facts, data_dir, tenant=tenant, priority_class=priority_class))
    typer.echo(f"{tenant} has class {priority_class}")
