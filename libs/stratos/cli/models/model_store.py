"""Plain folders of base models in the object store: put there once, fetched by each pod, or once into a shared cache.

A fetched folder appears complete, with the digest that was asked for, or not at all. Of several processes that fetch
into one cache the first does the work; the others wait for it and find the folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from stratos.common.errors import BadRequest, DependencyDown, InvalidCheckpoint
from stratos.core.files.model_files import read_model_files
from stratos.core.files.model_texts import is_text_name, text_digest
from stratos.store.object_store import ObjectStore, check_key, is_plain_key
from stratos.store.registry.catalogue import find_published, parse_reference
from stratos.store.registry.fetching import FetchWork, fetch_files

MAX_MODEL_BYTES = 4 * 1024**4


async def upload_model(store: ObjectStore, path: Path, prefix: str) -> str:
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

    async def bring(part: Path) -> None:
        await store.download_folder(prefix, part, max_bytes=MAX_MODEL_BYTES)
        found = (await asyncio.to_thread(read_model_files, part)).digest
        if digest and found != digest:
            raise InvalidCheckpoint(f"the model at {prefix} has the digest {found}, not {digest}")

    return await _brought(destination, bring)


async def fetch_published(
    store: ObjectStore, reference: str, destination: Path, digest: str = "", *, words_only: bool = False
) -> bool:
    """Bring a model of the registry to a folder; false where it was there already.

    Args:
        store: where it is published.
        reference: as ``parse_reference`` reads it.
        destination: where it should be.
        digest: that it must have; empty takes what the reference means.
        words_only: what gateways read of it, without weights.

    Raises:
        StratosError: it is not published, or not what was published, or cannot be fetched.
    """
    manifest = (await find_published(store, parse_reference(reference, "prefix"))).manifest
    if digest and manifest.digest != digest:
        raise InvalidCheckpoint(f"{reference} has the digest {manifest.digest}, not {digest}")
    names = [file.name for file in manifest.files if is_text_name(file.name)] if words_only else None

    async def bring(part: Path) -> None:
        await fetch_files(store, manifest, part, FetchWork(), names)
        if await asyncio.to_thread(text_digest, part) != manifest.text_digest:
            raise InvalidCheckpoint(f"tokenizer and templates of {reference} are not those that were published")

    return await _brought(destination, bring)


async def _brought(destination: Path, bring: Callable[[Path], Awaitable[None]]) -> bool:
    """Whether a folder was brought now; one of several that want it does."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    async with _alone(destination.with_name(f".{destination.name}.lock")):
        if not await asyncio.to_thread(_is_needed, destination):
            return False
        part = destination.with_name(f".{destination.name}.fetch-{secrets.token_hex(4)}")
        try:
            await bring(part)
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
