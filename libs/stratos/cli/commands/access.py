"""``stratos keys`` and ``stratos tenants``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from stratos.cli.commands.shared import RunOption, TenantOption, explained_errors
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.core.tenancy.roles import Role

keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
tenants_app = typer.Typer(help="Tenants and their plans.", no_args_is_help=True)


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    tenant: TenantOption = "default",
    plan: Annotated[str | None, typer.Option(help="Plan of a new tenant; default: standard.")] = None,
    role: Annotated[Role, typer.Option(help="What its owner may do.")] = Role.TENANT,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Make an API key; it is shown once."""
    from stratos.cli.keyring import create_key
    from stratos.cli.local.running import find_platform

    with explained_errors():
        facts = find_platform(data_dir, run)
        made = create_key(facts, data_dir, tenant=tenant, name=name, plan=plan, role=role)
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
    """List tenants with their plans."""
    from stratos.cli.keyring import list_tenants
    from stratos.cli.local.running import find_platform

    with explained_errors():
        tenants = asyncio.run(list_tenants(find_platform(data_dir, run), data_dir))
    for tenant in tenants:
        typer.echo(f"{tenant.name:<20} {tenant.plan}{'  suspended' if tenant.is_suspended else ''}")


@tenants_app.command("set-plan")
def tenants_set_plan(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    plan: Annotated[str, typer.Argument(help="Name of the plan.")],
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Change the plan of a tenant's future requests."""
    from stratos.cli.keyring import set_plan
    from stratos.cli.local.running import find_platform

    with explained_errors():
        facts = find_platform(data_dir, run)
        asyncio.run(set_plan(facts, data_dir, tenant=tenant, plan=plan))
    typer.echo(f"{tenant} has plan {plan}")
