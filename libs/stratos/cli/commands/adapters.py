"""``stratos adapters``: LoRA adapters of a running platform, or of the registry and stores at given addresses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratos.cli.commands.shared import RunOption, TenantOption, explained_errors
from stratos.cli.commands.stores.options import S3Option
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.cli.adapters import AdapterTarget, RegistryAddress

adapters_app = typer.Typer(help="LoRA adapters.", no_args_is_help=True)
RegistryOption = Annotated[
    str,
    typer.Option("--registry", envvar="STRATOS_REGISTRY", help="host:port; default: that of the running platform."),
]
TlsOption = Annotated[
    Path | None,
    typer.Option(envvar="STRATOS_TLS_FOLDER", help="With mTLS: folder with an administrator's certificate."),
]
DomainOption = Annotated[
    str, typer.Option(envvar="STRATOS_TLS_DOMAIN", help="With mTLS: name of the platform in its certificates.")
]


@adapters_app.command("register")
def register(
    name: Annotated[str, typer.Argument(help='Name that clients use as "model".')],
    path: Annotated[Path, typer.Argument(help="PEFT folder: adapter_config.json, adapter_model.safetensors.")],
    tenant: TenantOption = "",
    registry: RegistryOption = "",
    tls_folder: TlsOption = None,
    domain: DomainOption = "stratos",
    object_store: Annotated[
        str, typer.Option(envvar="STRATOS_OBJECT_STORE", help="file:///DIR or s3://BUCKET/PREFIX, with a registry.")
    ] = "",
    s3_endpoint: S3Option = "",
    model: Annotated[
        str, typer.Option(envvar="STRATOS_MODEL_PATH", help="Folder of the base model, with a registry.")
    ] = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Copy an adapter into the object store and register it."""
    from stratos.cli.adapters import AdapterTarget, register_adapter

    with explained_errors():
        if not registry:
            target = _running(data_dir, run)
        elif not object_store or not model:
            raise BadRequest("with --registry, give --object-store and --model, too")
        else:
            target = AdapterTarget(
                registry=_address(registry, tls_folder, domain),
                object_store_url=object_store,
                s3_endpoint_url=s3_endpoint,
                model_path=model,
            )
        view = asyncio.run(register_adapter(target, name=name, path=path, tenant=tenant))
    typer.echo(f"{view.name}  rank {view.rank}  digest {view.digest[:12]}  {view.uri}")


@adapters_app.command("list")
def list_all(
    tenant: TenantOption = "",
    registry: RegistryOption = "",
    tls_folder: TlsOption = None,
    domain: DomainOption = "stratos",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """List the adapters a tenant may use."""
    from stratos.cli.adapters import list_adapters

    with explained_errors():
        target = _registry(_address(registry, tls_folder, domain), data_dir, run)
        for view in asyncio.run(list_adapters(target, tenant=tenant)):
            owner = view.tenant or "(all)"
            past = ", ".join(version.digest[:12] for version in view.former) + (", rolled back" * view.is_rolled_back)
            text = f"{view.name:<24} {owner:<12} rank {view.rank:<4} {view.num_bytes:>10} B  {view.digest[:12]}"
            typer.echo(text + (f"  before: {past}" if past else ""))


@adapters_app.command("rollback")
def roll_back(
    name: Annotated[str, typer.Argument(help="Name of the adapter.")],
    to: Annotated[str, typer.Option(help="First digits of a version's digest; default: the one before, once.")] = "",
    tenant: TenantOption = "",
    registry: RegistryOption = "",
    tls_folder: TlsOption = None,
    domain: DomainOption = "stratos",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Let a name stand for a version before; running requests keep what they resolved."""
    from stratos.cli.adapters import roll_back_adapter

    with explained_errors():
        target = _registry(_address(registry, tls_folder, domain), data_dir, run)
        view = asyncio.run(roll_back_adapter(target, name=name, tenant=tenant, to=to))
    typer.echo(f"{view.name}  rank {view.rank}  digest {view.digest[:12]}  {view.uri}")


@adapters_app.command("delete")
def delete(
    name: Annotated[str, typer.Argument(help="Name of the adapter.")],
    tenant: TenantOption = "",
    registry: RegistryOption = "",
    tls_folder: TlsOption = None,
    domain: DomainOption = "stratos",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Take an adapter's name away; running requests keep what they resolved."""
    from stratos.cli.adapters import delete_adapter

    with explained_errors():
        target = _registry(_address(registry, tls_folder, domain), data_dir, run)
        asyncio.run(delete_adapter(target, name=name, tenant=tenant))
    typer.echo(f"{name} is deleted")


def _address(registry: str, tls_folder: Path | None, domain: str) -> RegistryAddress:
    from stratos.cli.adapters import RegistryAddress
    from stratos.pki.local import role_config

    return RegistryAddress(registry, None if tls_folder is None else role_config(tls_folder, domain))


def _registry(given: RegistryAddress, data_dir: Path, run: str) -> AdapterTarget:
    """The one that was given, else that of the running platform."""
    from stratos.cli.adapters import AdapterTarget

    return AdapterTarget(registry=given) if given.address else _running(data_dir, run)


def _running(data_dir: Path, run: str) -> AdapterTarget:
    from stratos.cli.adapters import AdapterTarget
    from stratos.cli.local.running import find_platform

    return AdapterTarget.of(find_platform(data_dir, run))
