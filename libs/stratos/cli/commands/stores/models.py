"""``stratos admin record-model`` and ``retire-models``: models that the values of an installation name."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stratos.cli.commands.shared import WaitOption, explained_errors
from stratos.cli.commands.stores.options import ObjectsOption, PrefixOption, RedisOption, S3Option, find_target
from stratos.cli.local.options import DEFAULT_DATA_DIR
from stratos.common.errors import BadRequest

declared_app = typer.Typer()
OwnerOption = Annotated[
    str, typer.Option(help="Whose record it is: models that were added by people have none, and are left alone.")
]


@declared_app.command("record-model")
def record(
    name: Annotated[str, typer.Argument(help='Name that clients use as "model".')],
    owner: OwnerOption,
    folder: Annotated[Path | None, typer.Option(help="Model folder; its weights are read for its digest.")] = None,
    origin: Annotated[
        str, typer.Option("--from", help="registry:NAME@DIGEST, or its folder there, with --digest.")
    ] = "",
    digest: Annotated[str, typer.Option(help="Of the model, as `publish` printed it: no weights are read.")] = "",
    terms: Annotated[str, typer.Option(help="Fields of its record as JSON; others have their defaults.")] = "",
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    wait_s: WaitOption = 0,
) -> None:
    """Record a model for the gateways of an installation, or a further revision; again changes nothing."""
    from stratos.cli.models.declared import DeclaredModel, record_model
    from stratos.cli.stores import once_answered
    from stratos.common.clock import SystemClock

    with explained_errors():
        if (folder is None) == (not origin):
            raise BadRequest("give one of --folder and --from", param="--folder")
        model = DeclaredModel(name=name, owner=owner, folder=folder, prefix=origin, digest=digest, terms=_parsed(terms))
        target = find_target(redis_url, object_store, s3_endpoint, prefix, DEFAULT_DATA_DIR, "")
        write = partial(record_model, target, model, owner)
        is_new = asyncio.run(once_answered(write, wait_s, SystemClock()))
    typer.echo(f"{name} {'is recorded' if is_new else 'was recorded already'}")


@declared_app.command("retire-models")
def retire(
    owner: OwnerOption,
    keep: Annotated[list[str] | None, typer.Option(help="Name whose records stay; may be repeated.")] = None,
    redis_url: RedisOption = "",
    object_store: ObjectsOption = "",
    s3_endpoint: S3Option = "",
    prefix: PrefixOption = "",
    wait_s: WaitOption = 0,
) -> None:
    """Remove an owner's records of models that its values name no more."""
    from stratos.cli.models.declared import retire_models
    from stratos.cli.stores import once_answered
    from stratos.common.clock import SystemClock

    with explained_errors():
        target = find_target(redis_url, object_store, s3_endpoint, prefix, DEFAULT_DATA_DIR, "")
        remove = partial(retire_models, target, owner, keep or (), owner)
        gone = asyncio.run(once_answered(remove, wait_s, SystemClock()))
    typer.echo(f"removed: {', '.join(gone) or 'nothing'}")


def _parsed(terms: str) -> dict[str, Any]:
    try:
        found = json.loads(terms or "{}")
    except ValueError as error:
        raise BadRequest(f"--terms is no JSON: {error}", param="--terms") from None
    if not isinstance(found, dict):
        raise BadRequest("--terms is an object", param="--terms")
    return found
