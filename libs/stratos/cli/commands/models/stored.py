"""``stratos models publish`` and what is beside it: base models in the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from stratos.cli.commands.admin_access import KeyOption, admin_client
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.commands.stores.options import S3Option
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from stratos.store.object_store import ObjectStore
    from stratos.store.settings import ObjectStoreConfig

stored_app = typer.Typer()
PrefixArgument = Annotated[str, typer.Argument(help="Folder in the object store, e.g. models/my-model.")]
StoreOption = Annotated[str, typer.Option("--object-store", help="file:///DIR or s3://BUCKET/PREFIX.")]
OwnStoreOption = Annotated[
    str, typer.Option("--object-store", help="file:///DIR or s3://BUCKET/PREFIX; default: the running platform's.")
]
NameArgument = Annotated[str, typer.Argument(help="Name of the model in the registry.")]
T = TypeVar("T")
NUM_ATTEMPTS = 5
UNLOGGED = "no audit log has an entry of it"
"""What is said of all that changes the registry: it goes to the object store, past the gateways."""


@stored_app.command("publish")
def publish(
    name: NameArgument,
    path: Annotated[Path | None, typer.Option(help="Hugging Face model folder with weights in safetensors.")] = None,
    origin: Annotated[str, typer.Option("--from", help="registry:NAME@DIGITS, published under another name.")] = "",
    licence: Annotated[str, typer.Option(help="Its licence; default: what its README says.")] = "",
    no_first_token: Annotated[
        bool, typer.Option("--no-first-token", help="Do not load the weights to compute a token: memory lacks here.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Read the chunks that are there, and send again what was damaged.")
    ] = False,
    object_store: OwnStoreOption = "",
    s3_endpoint: S3Option = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Check a model and put it into the registry; its reference is the last line. Again sends what lacks."""
    from stratos.cli.data.folder import DataDir
    from stratos.cli.models.publishing import PublishRequest, publish_model, republish_model
    from stratos.store.models.forms import check_model_name

    with explained_errors():
        check_model_name(name)
        if (path is None) == (not origin):
            raise BadRequest("give one of --path and --from", param="--path")
        if not object_store:  # with an address its own credentials say who may write
            with admin_client("", key, data_dir, run) as client:
                client.call("GET", "/models")
        data = DataDir(data_dir)
        data.prepare()
        store = store_of(object_store, s3_endpoint, "", data_dir, run)
        if path is None:
            made = republish_model(name, origin, store)
            typer.echo(UNLOGGED, err=True)
            typer.echo(made.reference)
            return
        asked = PublishRequest(
            name=name, folder=path, store=store, digests_file=data.digests_file, licence=licence,
            computes_token=not no_first_token, repairs=repair, say=lambda line: typer.echo(line, err=True),
        )  # fmt: skip
        published_now = publish_model(asked)
        typer.echo(UNLOGGED, err=True)
        typer.echo(published_now.reference)


@stored_app.command("published")
def published(
    name: NameArgument,
    object_store: OwnStoreOption = "",
    s3_endpoint: S3Option = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """List the revisions of a name in the registry, newest first, with their facts."""
    from stratos.cli.models.publishing import published_text, revisions_of

    with explained_errors():
        found = revisions_of(store_of(object_store, s3_endpoint, "", data_dir, run), name)
        if not found:
            raise NotFound(f"no model is published as {name!r}")
        for one in found:
            typer.echo("\n".join(published_text(one)))


@stored_app.command("unpublish")
def unpublish(
    reference: Annotated[str, typer.Argument(help="registry:NAME@DIGITS, which nothing serves any more.")],
    object_store: OwnStoreOption = "",
    s3_endpoint: S3Option = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Take a revision out of the registry; `sweep` then deletes what nothing else has of it."""
    from stratos.cli.models.retiring import unpublish_model

    with explained_errors():
        rows = None
        if not object_store:
            with admin_client("", key, data_dir, run) as client:
                rows = client.call("GET", "/models")["data"]
        gone = unpublish_model(reference, store_of(object_store, s3_endpoint, "", data_dir, run), rows)
        if rows is None:
            typer.echo("no platform was asked whether it serves this revision", err=True)
        typer.echo(f"{UNLOGGED}; `stratos models sweep` deletes its chunks", err=True)
        typer.echo(gone.reference)


@stored_app.command("sweep")
def sweep(
    min_age_s: Annotated[float, typer.Option(min=0, help="Younger chunks stay.")] = 3600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    object_store: OwnStoreOption = "",
    s3_endpoint: S3Option = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Delete chunks of the registry that no published revision has; never beside a publication."""
    from stratos.cli.models.retiring import sweep_registry

    with explained_errors():
        if not object_store:
            with admin_client("", key, data_dir, run) as client:
                client.call("GET", "/models")
        store = store_of(object_store, s3_endpoint, "", data_dir, run)
        swept = sweep_registry(store, min_age_s, deletes=not dry_run)
    what = "would be deleted" if dry_run else "deleted"
    typer.echo(f"{swept.num_chunks} chunks {what}: {swept.num_bytes:,} bytes")
    if not dry_run:
        typer.echo(UNLOGGED, err=True)


@stored_app.command("upload")
def upload(
    path: Annotated[Path, typer.Argument(help="Hugging Face model folder, or a GGUF file.")],
    prefix: PrefixArgument,
    object_store: StoreOption,
    s3_endpoint: S3Option = "",
) -> None:
    """Put a plain model folder into the object store, for pods that fetch it whole; prints its digest."""
    from stratos.cli.models.model_store import upload_model
    from stratos.text.gguf.kept_folders import folder_for

    with explained_errors(), folder_for(path) as found:
        typer.echo(_with_store(object_store, s3_endpoint, lambda store: upload_model(store, found, prefix)))


@stored_app.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="Hugging Face model folder, or a config.json alone.")],
) -> None:
    """Say whether the engine serves a model, before its weights are downloaded: its family, and what is missing."""
    from stratos.cli.data.model_check import check_model

    with explained_errors():
        typer.echo("\n".join(check_model(path)))


@stored_app.command("folder")
def folder(
    path: Annotated[Path, typer.Argument(help="GGUF file, or the first part of one that is split.")],
    into: Annotated[Path, typer.Option(help="Folder that it should become; where it is there, nothing is done.")],
) -> None:
    """Write the model folder of a GGUF file, with a link to it: for workers and gateways that are started alone."""
    from stratos.text.gguf.folder import write_model_folder

    with explained_errors():
        typer.echo(write_model_folder(path, into))


@stored_app.command("fetch")
def fetch(
    prefix: Annotated[
        str, typer.Argument(help="Folder in the object store, e.g. models/my-model, or registry:NAME@DIGITS.")
    ],
    object_store: StoreOption,
    into: Annotated[Path, typer.Option(help="Folder that it should become; where it is there, nothing is done.")],
    s3_endpoint: S3Option = "",
    digest: Annotated[str, typer.Option(help="Digest that it must have, as `upload` or `publish` printed it.")] = "",
    words: Annotated[
        bool, typer.Option("--words", help="Of the registry: what gateways read of it, without weights.")
    ] = False,
) -> None:
    """Bring a model to a folder, which appears complete or not at all."""
    from stratos.cli.models.model_store import fetch_model, fetch_published
    from stratos.store.registry.catalogue import is_reference

    async def work(store: ObjectStore) -> bool:
        if is_reference(prefix):
            return await fetch_published(store, prefix, into, digest, words_only=words)
        return await fetch_model(store, prefix, into, digest)

    with explained_errors():
        if words and not is_reference(prefix):
            raise BadRequest("--words is for models of the registry", param="--words")
        is_new = _with_store(object_store, s3_endpoint, work)
    typer.echo(f"{prefix} {'is fetched' if is_new else 'was there already'}: {into}")


@stored_app.command("pull")
def pull(
    reference: Annotated[str, typer.Argument(help="registry:NAME@DIGITS, as published.")],
    cache: Annotated[Path | None, typer.Option(help="Cache of this node; default: the platform's.")] = None,
    cache_bytes: Annotated[int, typer.Option(min=0, help="Bound of the cache; 0: as the disk fills.")] = 0,
    object_store: OwnStoreOption = "",
    s3_endpoint: S3Option = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Bring a model of the registry into the cache of this node, so that workers start without a download."""
    from stratos.cli.data.folder import DataDir
    from stratos.cli.models.references import pulled_model
    from stratos.store.registry.node_cache import NodeCache

    with explained_errors():
        store = store_of(object_store, s3_endpoint, "", data_dir, run)
        node = NodeCache(cache or DataDir(data_dir).models_path, cache_bytes)
        path, num_bytes = pulled_model(reference, store, node)
    typer.echo(f"{path}: {num_bytes:,} bytes came")


def store_of(url: str, s3_endpoint: str, admin_url: str, data_dir: Path, run: str) -> ObjectStoreConfig:
    """The object store that was named, else that of the running platform."""
    from stratos.cli.local.running import find_platform
    from stratos.store.settings import ObjectStoreConfig

    if url:
        return ObjectStoreConfig(url=url, s3_endpoint_url=s3_endpoint)
    if admin_url:
        raise BadRequest("with --url, give --object-store, too: that of the gateways", param="--object-store")
    facts = find_platform(data_dir, run)
    return ObjectStoreConfig(url=facts.object_store_url, s3_endpoint_url=facts.s3_endpoint_url)


def _with_store(url: str, s3_endpoint: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    from stratos.store.settings import ObjectStoreConfig
    from stratos.store.urls import opened_store

    async def run() -> T:
        config = ObjectStoreConfig(url=url, s3_endpoint_url=s3_endpoint)
        async with opened_store(config, num_attempts=NUM_ATTEMPTS) as store:
            return await work(store)

    return asyncio.run(run())
