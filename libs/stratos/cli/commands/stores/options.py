"""Options of ``stratos admin`` that name the stores, and what they come to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.cli.stores import StoreTarget

RedisOption = Annotated[
    str, typer.Option("--redis-url", envvar="REDIS_URL", help="Redis; default: that of the running platform.")
]
ObjectsOption = Annotated[
    str,
    typer.Option(
        "--object-store", envvar="STRATOS_OBJECT_STORE", help="file:///DIR or s3://BUCKET/PREFIX, with a Redis."
    ),
]
S3Option = Annotated[
    str,
    typer.Option("--s3-endpoint", envvar="STRATOS_S3_ENDPOINT", help="Address of an S3 service that is not AWS."),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        "--prefix", envvar="STRATOS_RECORDS_PREFIX", help="Head of the keys in Redis, as the services have it."
    ),
]
BackupsOption = Annotated[
    str,
    typer.Option(
        "--backups", envvar="STRATOS_BACKUPS", help="Object store of the backups; default: the platform's own."
    ),
]


def find_target(
    redis_url: str, object_store: str, s3_endpoint: str, prefix: str, data_dir: Path, run_id: str
) -> StoreTarget:
    """The stores at given addresses, or those of a running platform where there is no address of Redis."""
    from stratos.cli.local.running import find_platform
    from stratos.cli.stores import StoreTarget

    if not redis_url:
        return StoreTarget.of(find_platform(data_dir, run_id))
    if not object_store:
        raise BadRequest("give --object-store, too: the store's id and its adapters are there")
    target = StoreTarget(redis_url=redis_url, object_store_url=object_store, s3_endpoint_url=s3_endpoint)
    return dataclasses.replace(target, prefix=prefix) if prefix else target
