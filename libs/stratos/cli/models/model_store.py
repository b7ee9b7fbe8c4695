"""Base models in the object store: put there once, fetched by each pod, or once into a cache that pods share.

A fetched folder appears complete, with the digest that was asked for, or not at all. Of several processes that fetch
into one cache the first does the work; the others wait for it and find the folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stratos.common.errors import BadRequest, DependencyDown, InvalidCheckpoint
from stratos.core.files.model_files import read_model_files
from stratos.store.object_store import ObjectStore, check_key, is_plain_key

MAX_MODEL_BYTES = 4 * 1024**4


async def publish_model(store: ObjectStore, path: Path, prefix: str) -> str:
    """Put a model folder into the store; returns the model's digest.

    The configuration goes last: a folder without it is no model, so one that is half there is never taken.

    Raises:
        InvalidCheckpoint: it is no model folder.
        BadRequest: the prefix is no key.
        DependencyDown: the store does not answer.
    """
    prefix = check_key(prefix, "prefix")
    digest = (await asyncio.to_thread(read_model_files, path)).digest
    for name in _names(path):
        await store.put(f"{prefix}/{name}", path / name)
    return digest


async def fetch_model(store: ObjectStore, prefix: str, destination: Path, digest: str = "") -> bool:
    """Bring a model to a folder; false where it was there already.

    Args:
        store: where it comes from.
        prefix: its folder there.
        destination: where it should be; its parent is created.
        digest: that it must have; empty takes what is there.

    Raises:
        NotFound: the store has no such folder.
        InvalidCheckpoint: it is no model folder, or another model.
        DependencyDown: the store does not answer, or the disk is full.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    async with _alone(destination.with_name(f".{destination.name}.lock")):
        if not await asyncio.to_thread(_is_needed, destination):
            return False
        part = destination.with_name(f".{destination.name}.fetch-{secrets.token_hex(4)}")
        try:
            await store.download_folder(prefix, part, max_bytes=MAX_MODEL_BYTES)
            found = (await asyncio.to_thread(read_model_files, part)).digest
            if digest and found != digest:
                raise InvalidCheckpoint(f"the model at {prefix} has the digest {found}, not {digest}")
            part.rename(destination)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return True


def _names(path: Path) -> list[str]:
    """Files of a model folder, in the order in which they are stored."""
    names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*")) if file.is_file()]
    return sorted(filter(is_plain_key, names), key=lambda name: name == "config.json")


def _is_needed(destination: Path) -> bool:
    """Whether the folder is missing; removes what a killed fetch left, since under the lock there is no other one."""
    for left in destination.parent.glob(f".{destination.name}.fetch-*"):
        shutil.rmtree(left, ignore_errors=True)
    return not destination.is_dir()


@asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """Holds a lock that ends with the process."""
    try:
        file = path.open("w")
    except OSError as error:
        raise BadRequest(f"{path.parent} cannot be written: {error.strerror}", param="--into") from error
    with file:
        try:
            await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        except OSError as error:
            raise DependencyDown(f"{path.parent} cannot be locked: {error.strerror}") from error
        yield
