"""``stratos models``: base models in the object store, from which pods take them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from stratos.cli.commands.shared import explained_errors

if TYPE_CHECKING:
    from stratos.store.object_store import ObjectStore

models_app = typer.Typer(help="Base models in the object store.", no_args_is_help=True)
PrefixArgument = Annotated[str, typer.Argument(help="Folder in the object store, e.g. models/my-model.")]
StoreOption = Annotated[str, typer.Option("--object-store", help="file:///DIR or s3://BUCKET/PREFIX.")]
S3Option = Annotated[str, typer.Option("--s3-endpoint", help="Address of an S3 service that is not AWS.")]
T = TypeVar("T")
NUM_ATTEMPTS = 5


@models_app.command("publish")
def publish(
    path: Annotated[Path, typer.Argument(help="Hugging Face model folder, or a GGUF file.")],
    prefix: PrefixArgument,
    object_store: StoreOption,
    s3_endpoint: S3Option = "",
) -> None:
    """Put a model folder into the object store; prints its digest."""
    from stratos.cli.model_store import publish_model
    from stratos.text.gguf.kept_folders import folder_for

    with explained_errors(), folder_for(path) as found:
        typer.echo(_with_store(object_store, s3_endpoint, lambda store: publish_model(store, found, prefix)))


@models_app.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="Hugging Face model folder, or a config.json alone.")],
) -> None:
    """Say whether the engine serves a model, before its weights are downloaded: its family, and what is missing."""
    from stratos.cli.data.model_check import check_model

    with explained_errors():
        typer.echo("\n".join(check_model(path)))


@models_app.command("folder")
def folder(
    path: Annotated[Path, typer.Argument(help="GGUF file, or the first part of one that is split.")],
    into: Annotated[Path, typer.Option(help="Folder that it should become; where it is there, nothing is done.")],
) -> None:
    """Write the model folder of a GGUF file, with a link to it: for workers and gateways that are started alone."""
    from stratos.text.gguf.folder import write_model_folder

    with explained_errors():
        typer.echo(write_model_folder(path, into))


@models_app.command("fetch")
def fetch(
    prefix: PrefixArgument,
    object_store: StoreOption,
    into: Annotated[Path, typer.Option(help="Folder that it should become; where it is there, nothing is done.")],
    s3_endpoint: S3Option = "",
    digest: Annotated[str, typer.Option(help="Digest that it must have, as publish printed it.")] = "",
) -> None:
    """Bring a model to a folder, which appears complete or not at all."""
    from stratos.cli.model_store import fetch_model

    with explained_errors():
        is_new = _with_store(object_store, s3_endpoint, lambda store: fetch_model(store, prefix, into, digest))
    typer.echo(f"{prefix} {'is fetched' if is_new else 'was there already'}: {into}")


def _with_store(url: str, s3_endpoint: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    from stratos.store.settings import ObjectStoreConfig
    from stratos.store.urls import open_store

    async def run() -> T:
        store = open_store(ObjectStoreConfig(url=url, s3_endpoint_url=s3_endpoint), num_attempts=NUM_ATTEMPTS)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())
